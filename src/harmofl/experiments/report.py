"""The report of a run, of several runs or of an experiment: one page, from what their folder holds."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harmofl.analysis.measured_terms import terms_of_cells
from harmofl.errors import UsageError, describe
from harmofl.experiments.kept import is_kept, read_kept
from harmofl.experiments.lines import RESULTS, read_lines
from harmofl.experiments.plan import Paper
from harmofl.experiments.writing import paper_table
from harmofl.reporting import experiment_figures as drawings
from harmofl.reporting.comparisons import Comparison
from harmofl.reporting.drift_figures import CAPTION, drift_with_terms
from harmofl.reporting.experiment_figures import Point
from harmofl.reporting.experiment_words import summarize_experiment
from harmofl.reporting.gallery import FOLDER as PICTURES
from harmofl.reporting.gallery import read_gallery
from harmofl.reporting.page import Additions, Picture, Repeat, next_steps_for, pictures_of, repeating, write_page
from harmofl.reporting.style import write_figures
from harmofl.reporting.tables import Table, methods_of, score_table
from harmofl.reporting.words import listed, summarize, title_for
from harmofl.runs.finished import FinishedRun, read_run

PAGE = "report.html"

State = Mapping[str, Any]
Steps = list[tuple[str, str]]


def write_report(folder: Path | str) -> Path:
    """Write `report.html` into the folder of a run, of several runs or of an experiment; return its path."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: a report is made of a run's, of several runs' or of an experiment's")
    page = folder / PAGE
    try:
        (_report_experiment if (folder / RESULTS).exists() else _report_runs)(folder, page)
    except OSError as error:
        raise UsageError(f"{page} cannot be written: {error.strerror or error}") from None
    return page


# ---- runs ----


def _report_runs(folder: Path, page: Path) -> None:
    finished = [path.parent for path in sorted(folder.rglob("summary.json"))]
    begun = [path.parent for path in sorted(folder.rglob("config.toml"))]
    unfinished = [path for path in begun if path not in finished]
    if not finished:
        raise UsageError(f"{folder} holds {_what_instead(unfinished)}")
    runs = [read_run(path) for path in finished]
    reason = "not finished: harmofl train with --resume goes on with it"
    missing = [(path.relative_to(folder).as_posix(), reason) for path in unfinished]
    write_page(
        page,
        title=title_for(runs),
        summary_sentences=[*summarize(runs), *_missing_sentence(len(missing), len(runs) + len(missing), "run")],
        runs=runs,
        next_steps=_steps_after(runs, folder),
        additions=Additions(missing=missing, gallery=read_gallery(folder)),
    )


def _what_instead(unfinished: Sequence[Path]) -> str:
    if unfinished:
        return f"no finished run yet: {unfinished[0]} goes on with harmofl train and --resume"
    return f"neither a finished run (summary.json) nor an experiment ({RESULTS}): nothing to report"


def _steps_after(runs: Sequence[FinishedRun], folder: Path) -> Steps:
    """With hospitals of one's own the models are what one goes on with; else there is more to try."""
    if not any(run.settings.get("data", {}).get("folder") for run in runs):
        return next_steps_for(runs, folder)
    models = [run.folder / "model" for run in runs if (run.folder / "model").is_dir()]
    if not models:
        return []
    model = shlex.quote(_seen_from(folder, models[0]))
    return [
        ("Score the model on other labelled images", f"harmofl evaluate {model} --data FOLDER"),
        ("Predict for new images", f"harmofl predict {model} IMAGES --out predictions"),
    ]


# ---- experiments ----


def _report_experiment(folder: Path, page: Path) -> None:
    state = _read_state(folder / RESULTS)
    try:
        runs = read_lines(folder)
        if not runs and state["shows"] == "samples":
            raise UsageError(
                f"{folder} holds an experiment that trains nothing: its pictures are in {folder / PICTURES}"
            )
        if not runs:
            raise UsageError(f"{folder} holds an experiment of which no cell is finished yet: nothing to report")
        found = [_comparison(values) for values in state["comparisons"]]
        points = _points(state, runs)
        pictures = {**pictures_of(runs), **_pictures(runs, points), **_drift_terms(state, folder)}
        if _holds_out(state):
            del pictures["sites"]  # of hospitals that took part
            pictures["unseen"] = _unseen_picture(runs)
        write_figures({_FILES[name]: pictures[name].figure for name in pictures}, folder / "figures")
        write_page(
            page,
            title=state["title"],
            summary_sentences=_sentences(state, runs, found, points),
            runs=runs,
            next_steps=_steps_on(state),
            additions=Additions(
                table=_table(state, runs),
                comparisons=found,
                paper=_paper(state, folder),
                pictures=pictures,
                missing=_missing(state),
                gallery=read_gallery(folder),
                repeats=[_repeat(cell, folder, state) for cell in state["cells"] if cell["state"] == "done"],
                repeat_all=shlex.join([*_command(state), "--out", f"{folder.resolve().name}-again"]),
            ),
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder / RESULTS} is not what an experiment writes: {error!r}") from None


_FILES = {
    "sites": "scores-by-site",
    "convergence": "convergence",
    "drift": "drift",
    "drift-by-site": "drift-by-site",
    "drift-terms": "drift-terms",
    "unseen": "scores-at-unseen-hospital",
    "bytes": "score-by-bytes",
    "curve": "score-curve",
    "variations": "scores-by-variation",
}
"""Names of pictures on the page, and of their files."""


def _read_state(path: Path) -> State:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(state, dict):
        raise UsageError(f"{path} should hold a JSON object, not {type(state).__name__}")
    return state


def _comparison(values: State) -> Comparison:
    return Comparison(**{field.name: values[field.name] for field in fields(Comparison)})


def _points(state: State, runs: Sequence[FinishedRun]) -> list[Point]:
    """The table's lines as points along the experiment's axis, or else by the names of its variations."""
    key = "x" if state["axis"] else "variation"
    cells = {cell["label"]: cell for cell in state["cells"]}
    places = [(method, cells[method.label]) for method in methods_of(runs)]
    return [
        Point(cell["row"], state["axis"], cell[key], method)
        for method, cell in places
        if cell.get(key) not in (None, "")
    ]


def _pictures(runs: Sequence[FinishedRun], points: Sequence[Point]) -> dict[str, Picture]:
    """The figures that an experiment adds to those of its runs."""
    score = runs[0].score
    metric = score.words
    pictures = {}
    if points and points[0].axis:
        caption = f"Average test {metric} against {drawings.words_for(points[0].axis)}. "
        caption += "Higher is better." if score.higher_is_better else "Lower is better."
        pictures["curve"] = Picture(drawings.score_curves(points), caption)
    elif points:
        caption = f"Average test {metric} of each row under each variation. Further {score.better_direction} is better."
        pictures["variations"] = Picture(drawings.scores_by_variation(points), caption)
    if drawings.has_drift(runs):
        caption = "Drift Γ of each hospital in each round, averaged over seeds: a panel per method, all on one scale."
        pictures["drift-by-site"] = Picture(drawings.drift_by_site(runs), caption)
    if drawings.has_bytes(runs):
        caption = (
            f"Test {metric} against what each hospital has sent and received up to then. "
            "A curve further left needs less traffic for the same score."
        )
        pictures["bytes"] = Picture(drawings.score_by_bytes(runs), caption)
    return pictures


def _unseen_picture(runs: Sequence[FinishedRun]) -> Picture:
    caption = (
        f"Test {runs[0].score.words} at each hospital, of models that were trained without it. "
        f"Further {runs[0].score.better_direction} is better."
    )
    return Picture(drawings.unseen_scores(runs), caption)


def _drift_terms(state: State, folder: Path) -> dict[str, Picture]:
    """The drift beside the terms of its bound, where `harmofl landscape` has measured them below this folder."""
    runs = terms_of_cells({cell["path"]: (cell["label"], cell["seed"]) for cell in state["cells"]}, folder)
    return {"drift-terms": Picture(drift_with_terms(runs), CAPTION)} if runs else {}


def _sentences(
    state: State, runs: Sequence[FinishedRun], found: Sequence[Comparison], points: Sequence[Point]
) -> list[str]:
    sentences = summarize_experiment(runs, found, points)
    if _holds_out(state):
        sentences.insert(1, "Each score is of a hospital that took no part in the training of the model it scores.")
    return sentences + _missing_sentence(len(_without_scores(state)), len(state["cells"]), "cell")


def _missing_sentence(missing: int, total: int, noun: str) -> list[str]:
    if not missing:
        return []
    return [f"{missing} of {total} {noun}s {'is' if missing == 1 else 'are'} missing, so this may still change."]


def _holds_out(state: State) -> bool:
    return any(cell["held_out"] for cell in state["cells"])


def _without_scores(state: State) -> list[State]:
    return [cell for cell in state["cells"] if cell["state"] != "done"]


def _missing(state: State) -> list[tuple[str, str]]:
    """Cells without scores and why, the seeds of a line together."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for cell in _without_scores(state):
        reason = f"failed: {cell['error']}" if cell["state"] == "failed" else "not run yet"
        seeds.setdefault((_line(cell), reason), []).append(cell["seed"])
    return [(f"{line}, {_seeds(own)}", reason) for (line, reason), own in seeds.items()]


def _line(cell: State) -> str:
    without = f", without {cell['held_out']}" if cell["held_out"] else ""
    return f"{cell['label']}{without}"


def _seeds(numbers: Sequence[int]) -> str:
    return f"seed{'' if len(numbers) == 1 else 's'} {listed([str(number) for number in numbers])}"


def _table(state: State, runs: Sequence[FinishedRun]) -> Table:
    table = score_table(runs)
    kind = "at the hospital that took no part" if _holds_out(state) else "of the selected round"
    images = Path(state["data"]).name if state["data"] else "synthetic hospitals"
    notes = [*table.notes, f"Images: {images}. Preset: {state['preset']}.", *_unseen_notes(state)]
    return replace(table, caption=f"{table.caption}, {kind}", notes=tuple(notes))


def _unseen_notes(state: State) -> list[str]:
    """How a method was scored at an unseen hospital, where that is not the plain way."""
    notes: dict[str, list[str]] = {}
    for cell in state["cells"]:
        for scores in (cell.get("unseen") or {}).values():
            if scores.get("note"):
                notes.setdefault(scores["note"], []).append(cell["label"])
    return [f"“{'”, “'.join(dict.fromkeys(labels))}”: {note}." for note, labels in notes.items()]


def _paper(state: State, folder: Path) -> Table | None:
    if not state.get("paper"):
        return None
    try:
        return paper_table(Paper.model_validate(state["paper"]))
    except ValidationError as error:
        raise UsageError(f"{folder / RESULTS}: {describe(error, 'paper.')}") from None


def _command(state: State) -> list[str]:
    data = ["--data", Path(state["data"]).name] if state["data"] else []
    return ["harmofl", "experiment", f"{state['experiment']}.toml", *data, "--preset", state["preset"]]


def _steps_on(state: State) -> Steps:
    if not _without_scores(state):
        return []
    return [("Run what is missing", f"{shlex.join([*_command(state), '--out'])} . --resume")]


def _repeat(cell: State, folder: Path, state: State) -> Repeat:
    """A kept run has no file of settings, so that the page shows it; it does not say where the images lie."""
    label, place = f"{_line(cell)}, {_seeds([cell['seed']])}", folder / cell["folder"]
    if not is_kept(place):
        return Repeat(label, shlex.join(repeating(place, folder)))
    data = ["--data", Path(state["data"]).name] if state["data"] else []
    command = ["harmofl", "train", "--config", "config.toml", *data, "--out", "again"]
    return Repeat(label, shlex.join(command), read_kept(place).config)


def _seen_from(start: Path, path: Path) -> str:
    return Path(os.path.relpath(path, start)).as_posix()
