"""Runs the cells of an experiment, some side by side, each in a process of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from harmofl.data.facts import DataFacts
from harmofl.devices import num_cores
from harmofl.errors import RunError, UsageError
from harmofl.events import CellFinished, ExperimentProgressed, RunningCell, Watch, ignore
from harmofl.experiments.cells import Cell, Experiment, FindFacts, read_experiment
from harmofl.experiments.folder import hold_folder
from harmofl.experiments.kept import Kept
from harmofl.experiments.plan import copy_plan
from harmofl.experiments.processes import CellProcess
from harmofl.experiments.results import Results, gather
from harmofl.experiments.shared_trainings import SharedTrainings
from harmofl.experiments.shipped import find_plan
from harmofl.experiments.writing import write_results
from harmofl.extras import require
from harmofl.runs.finished import read_run
from harmofl.settings import Settings, flatten, resolve
from harmofl.tasks.data_facts import find_data_facts

PAUSE = 0.2
"""Seconds between two looks at the processes."""


def run_experiment(
    file: Path | str,
    out: Path | str,
    data: Path | str | None = None,
    preset: str | None = None,
    jobs: int | None = None,
    resume: bool = False,
    kept: Path | str | None = None,
    watch: Watch = ignore,
) -> Results:
    """Run every cell that is not done yet, and write results and tables after each.

    `file`: of the plan, or the name of one that comes with harmofl.
    `jobs`: cells side by side, one per core if not given. `kept`: a folder in which finished cells are kept, and
    whose cells count as done.
    """
    require("reports", "the page of an experiment")
    out, file = Path(out), find_plan(file)
    experiment = read_experiment(file, data, preset)
    store = Kept(Path(kept)) if kept else None
    with hold_folder(out, experiment, resume):
        if experiment.plan.shows == "samples":
            copy_plan(file, out)
            return _draw_samples(experiment, out, watch)
        find_facts = make_fact_finder(watch)  # before any process, so that images are decoded once
        errors = find_data_errors(experiment, find_facts)
        copy_plan(file, out)
        usable = replace(experiment, cells=tuple(cell for cell in experiment.cells if cell.path not in errors))
        results = replace(gather(usable, out, store, find_facts), experiment=experiment)
        try:
            if store:
                _keep_finished(results, out, store, find_facts)
            write_results(results, out)
            runner = Runner(results, errors, out, store, watch)
            runner.run(num_jobs(jobs, runner.todo))
        except OSError as error:
            raise RunError(f"{out}: {error.strerror or error}; what was written before is kept") from error
    return results


def make_fact_finder(watch: Watch) -> FindFacts:
    """Return a function that looks at the images that settings name, and opens the same images only once."""
    found: dict[str, DataFacts | UsageError] = {}

    def find_facts(settings: Settings) -> DataFacts:
        key = f"{settings.task} {settings.data.model_dump_json()}"
        if key not in found:
            try:
                found[key] = find_data_facts(settings, watch)
            except UsageError as error:
                found[key] = error
        facts = found[key]
        if isinstance(facts, UsageError):
            raise facts
        return facts

    return find_facts


def find_data_errors(experiment: Experiment, find_facts: FindFacts) -> dict[str, str]:
    """Return why cells cannot be run with their data, by path; raise it if it is the same for all of them."""
    errors: dict[str, str] = {}
    for cell in experiment.cells:
        try:
            cell.add_facts(find_facts)
        except UsageError as error:
            errors[cell.path] = str(error)
    if len(errors) == len(experiment.cells) and len(set(errors.values())) == 1:
        raise UsageError(next(iter(errors.values())))
    return errors


def _draw_samples(experiment: Experiment, out: Path, watch: Watch) -> Results:
    """Draw pictures instead of training cells."""
    from harmofl.reporting.gallery import FOLDER
    from harmofl.reporting.pictures import draw_samples

    folder = {"data.folder": experiment.data} if experiment.data else {}
    values = flatten(experiment.plan.settings) | folder
    settings, _ = resolve(experiment.plan.task, "fedavg", experiment.preset, overrides=values)
    draw_samples(find_data_facts(settings, watch).complete(settings), out / FOLDER, watch)
    results = Results(experiment)
    write_results(results, out)
    return results


def num_jobs(wanted: int | None, cells: Sequence[Cell]) -> int:
    """How many cells to run at a time: as many as asked for, within what there are of cells and cores."""
    threads = max((cell.settings.federation.threads for cell in cells), default=1)
    most = max(1, min(num_cores() // threads, len(cells)))
    return most if wanted is None else max(1, min(wanted, most))


def _keep_finished(results: Results, out: Path, store: Kept, find_facts: FindFacts) -> None:
    """Keep cells that an earlier run finished but did not keep: it was killed just then, or kept nothing."""
    experiment = results.experiment
    here = [cell for cell in experiment.cells if cell.path in results.runs]
    for cell in here:
        own = out / cell.path
        if results.runs[cell.path].folder == own and not store.find(experiment, cell.add_facts(find_facts)):
            store.keep(experiment, cell, own)


class Runner:
    """Keeps processes busy until every cell has been tried."""

    def __init__(
        self, results: Results, errors: Mapping[str, str], out: Path, store: Kept | None, watch: Watch
    ) -> None:
        """`errors`: why cells cannot be run, by their paths."""
        self._results = results
        self._out = out
        self._store = store
        self._watch = watch
        self.todo = [cell for cell in results.missing if cell.path not in errors]
        self._unusable = [(cell, errors[cell.path]) for cell in results.missing if cell.path in errors]
        self._running: list[CellProcess] = []
        self._trainings = SharedTrainings(out, self.todo)
        self._rows = {cell.path: cell.row for cell in results.experiment.cells}

    @property
    def _experiment(self) -> Experiment:
        return self._results.experiment

    def run(self, jobs: int) -> None:
        """Run the missing cells; however this ends, no process stays behind."""
        workers = 1 if jobs > 1 else 0  # results do not depend on it
        self._show_progress(jobs)
        for cell, error in self._unusable:
            self._end(cell, 0.0, error)
        try:
            while self.todo or self._running:
                while len(self._running) < jobs and (following := self._take_next()):
                    trained = self._trainings.folder_for(following)
                    self._running.append(CellProcess(following, self._out, workers, trained))
                for process in [process for process in self._running if process.has_ended]:
                    self._running.remove(process)
                    self._finish(process)
                self._show_progress(jobs)
                if self._running:
                    time.sleep(PAUSE)
        finally:
            for process in self._running:
                process.stop()

    def _take_next(self) -> Cell | None:
        """Take a cell from those to do, but none whose training is under way: it will find what that gave."""
        under_way = [process.cell for process in self._running]
        cell = self._trainings.choose(self.todo, under_way)
        if cell:
            self.todo.remove(cell)
        return cell

    def _finish(self, process: CellProcess) -> None:
        cell, error = process.cell, process.error()
        if error is None:
            self._results.runs[cell.path] = read_run(process.run.path)
            if self._store:
                self._store.keep(self._experiment, cell, process.run.path)
        self._trainings.release(cell, self.todo)
        self._end(cell, process.seconds, error)

    def _end(self, cell: Cell, seconds: float, error: str | None) -> None:
        """Write and report what came of a cell."""
        if error is not None:
            self._results.errors[cell.path] = error
        write_results(self._results, self._out)
        tried, total = len(self._results.runs) + len(self._results.errors), len(self._experiment.cells)
        score = self._score(cell) if error is None else ""
        self._watch(CellFinished(str(cell), seconds, tried, total, score, error or ""))

    def _score(self, cell: Cell) -> str:
        """The average over sites, or the score at the site that took no part."""
        run = self._results.runs[cell.path]
        run = run.on_validation() if self._experiment.plan.scores == "validation" else run
        unseen = run.summary["unseen"][cell.held_out]["metric"] if cell.held_out else None
        return run.score.text(run.average if unseen is None else run.score.in_unit(unseen), digits=2)

    def _show_progress(self, jobs: int) -> None:
        running = (
            RunningCell(str(process.cell), process.round, process.cell.settings.training.rounds, process.seconds)
            for process in self._running
        )
        progressed = ExperimentProgressed(
            title=self._experiment.plan.title,
            total=len(self._experiment.cells),
            done=len(self._results.runs),
            failed=len(self._results.errors),
            running=tuple(running),
            seconds_left=self._seconds_left(jobs),
        )
        self._watch(progressed)

    def _seconds_left(self, jobs: int) -> float | None:
        """Estimate from finished cells, if possible of the same row; None before the first is finished."""
        if not self._results.runs:
            return None
        finished = self._seconds_of_rows()
        usual = statistics.fmean(chain.from_iterable(finished.values()))
        expected = {row: statistics.fmean(seconds) for row, seconds in finished.items()}
        waiting = sum(expected.get(cell.row, usual) for cell in self.todo)
        running = (expected.get(process.cell.row, usual) - process.seconds for process in self._running)
        return (waiting + sum(max(0.0, seconds) for seconds in running)) / jobs

    def _seconds_of_rows(self) -> dict[str, list[float]]:
        """How long the finished cells of each row took."""
        finished: dict[str, list[float]] = {}
        for path, run in self._results.runs.items():
            finished.setdefault(self._rows[path], []).append(run.summary.get("seconds") or 0.0)
        return finished
