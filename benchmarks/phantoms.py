"""Are the synthetic hospitals neither trivial nor hopeless? Both conditions, from runs whose records are kept.

At shift 1, `centralized` must exceed FedAvg by at least 3 points: the sites really look different. At shift 0, where
they look alike, every other method must be within 1.5 points of FedAvg. Three seeds each, preset `small`.

    python benchmarks/phantoms.py            run what is missing, then write results/phantoms.md
    python benchmarks/phantoms.py --report   only write the page from the records

A cell is done once its summary, of a run with the same settings, lies in results/phantoms/: the grid can be filled in
several sittings.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
TASKS = ("histology", "nuclei", "prostate")
SEEDS = (0, 1, 2)
DIFFERENT = {1.0: ("centralized", "fedavg")}
ALIKE = {0.0: ("fedavg", "fedprox", "fednova", "fedbn", "moon", "harmofl")}
LEAST_GAIN, LARGEST_GAP = 3.0, 1.5


@dataclass(frozen=True)
class Cell:
    task: str
    shift: float
    method: str
    seed: int

    @property
    def folder(self) -> Path:
        return RESULTS / "phantoms" / self.task / f"shift-{self.shift:g}" / self.method / f"seed-{self.seed}"

    def score(self) -> float:
        summary = json.loads((self.folder / "summary.json").read_text())
        return 100 * float(summary["test"]["average"])


def cells() -> list[Cell]:
    return [
        Cell(task, shift, method, seed)
        for seed in SEEDS
        for task in TASKS
        for shift, methods in (DIFFERENT | ALIKE).items()
        for method in methods
    ]


@cache
def is_done(cell: Cell) -> bool:
    """Whether the cell's records are there, of a run with the settings that it would have now."""
    from harmofl.settings import differences, read_toml, resolve

    if not (cell.folder / "summary.json").exists():
        return False
    before, _ = resolve(file=read_toml(cell.folder / "config.toml"))
    now, _ = resolve(cell.task, cell.method, "small", overrides={"seed": cell.seed, "data.shift": cell.shift})
    return not differences(before, now)


def missing() -> list[Cell]:
    return [cell for cell in cells() if not is_done(cell)]


def run(cell: Cell) -> tuple[Cell, float]:
    """Train one cell and keep its summary, its configuration and its scores of every round."""
    import harmofl
    from harmofl.experiments.kept import to_rounds
    from harmofl.runs.finished import read_run

    warnings.simplefilter("ignore")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        settings = {"data.shift": cell.shift}
        harmofl.train(cell.task, cell.method, preset="small", seed=cell.seed, workers=1, settings=settings, out=out)
        cell.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(out / "config.toml", cell.folder)
        (cell.folder / "rounds.csv").write_text(to_rounds(read_run(out).records), encoding="utf-8")
        shutil.copy(out / "summary.json", cell.folder)  # last: a cell with it is done
    return cell, time.perf_counter() - started


@dataclass(frozen=True)
class Scores:
    """A method's scores, one a seed: the average over sites, in percent."""

    values: dict[int, float]

    @classmethod
    def read(cls, task: str, shift: float, method: str) -> Scores:
        here = [Cell(task, shift, method, seed) for seed in SEEDS]
        return cls({cell.seed: cell.score() for cell in here if is_done(cell)})

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values.values()) if self.values else float("nan")

    def minus(self, other: Scores) -> tuple[str, float | None]:
        """The mean difference over common seeds in words, and as a number once all seeds are there."""
        common = self.values.keys() & other.values.keys()
        if not common:
            return "–", None
        gap = statistics.fmean(self.values[seed] - other.values[seed] for seed in common)
        return (f"{gap:+.2f}", gap) if len(common) == len(SEEDS) else (f"so far {gap:+.2f}", None)

    def __str__(self) -> str:
        if len(self.values) < len(SEEDS):
            return f"{self.mean:.2f} ({len(self.values)} of {len(SEEDS)} seeds)" if self.values else "missing"
        return f"{self.mean:.2f} ({statistics.stdev(self.values.values()):.2f})"


def report() -> str:
    lines = [
        "# Are the synthetic hospitals neither trivial nor hopeless?",
        "",
        "Written by `python benchmarks/phantoms.py` from the records beside this file: preset `small`, seeds 0, 1, 2;",
        "mean over sites of the test score of the selected round, in percent (std over seeds in brackets).",
        "",
        f"## The hospitals look different (shift 1): `centralized` must exceed FedAvg by {LEAST_GAIN:g} points",
        "",
        "| task | centralized | FedAvg | difference | holds |",
        "|---|---|---|---|---|",
    ]
    for task in TASKS:
        pooled, federated = (Scores.read(task, 1.0, name) for name in DIFFERENT[1.0])
        words, gain = pooled.minus(federated)
        holds = "–" if gain is None else "yes" if gain >= LEAST_GAIN else "**no**"
        lines.append(f"| {task} | {pooled} | {federated} | {words} | {holds} |")
    lines += [
        "",
        f"## The hospitals look alike (shift 0): every method must be within {LARGEST_GAP:g} points of FedAvg",
        "",
        "| task | method | score | difference to FedAvg | holds |",
        "|---|---|---|---|---|",
    ]
    for task in TASKS:
        reference = Scores.read(task, 0.0, "fedavg")
        for method in ALIKE[0.0]:
            scores = Scores.read(task, 0.0, method)
            words, gap = scores.minus(reference) if method != "fedavg" else ("–", None)
            holds = "–" if gap is None else "yes" if abs(gap) <= LARGEST_GAP else "**no**"
            lines.append(f"| {task} | {method} | {scores} | {words} | {holds} |")
    if missing():
        lines += ["", f"{len(missing())} of {len(cells())} cells are still missing."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="only write the page from the records")
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=TASKS, help="run these only (default all)")
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side (default 2)")
    arguments = parser.parse_args()
    todo = [] if arguments.report else [cell for cell in missing() if cell.task in arguments.tasks]
    if todo:
        with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
            for number, future in enumerate(as_completed([pool.submit(run, cell) for cell in todo]), start=1):
                cell, seconds = future.result()
                is_done.cache_clear()
                print(f"{number}/{len(todo)} {cell}: {cell.score():.2f} in {seconds:.0f} s", flush=True)
    (RESULTS / "phantoms.md").write_text(report(), encoding="utf-8")
    print(f"wrote {RESULTS / 'phantoms.md'}")


if __name__ == "__main__":
    main()
