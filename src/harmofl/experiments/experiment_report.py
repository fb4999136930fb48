"""The page on an experiment: its table, figures, comparisons, and how to repeat it, from its folder alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harmofl.analysis.measured_terms import terms_of_cells
from harmofl.errors import UsageError
from harmofl.experiments.kept import is_kept, read_kept
from harmofl.experiments.lines import points_of, read_lines
from harmofl.experiments.state import CellState, ExperimentState, read_state
from harmofl.experiments.writing import paper_table, unseen_notes
from harmofl.files import write_whole
from harmofl.reporting import experiment_figures as drawings
from harmofl.reporting.comparisons import Comparison, compare_with
from harmofl.reporting.drift_figures import CAPTION, drift_with_terms
from harmofl.reporting.experiment_figures import Point
from harmofl.reporting.experiment_words import summarize_experiment
from harmofl.reporting.gallery import FOLDER as PICTURES
from harmofl.reporting.gallery import read_gallery
from harmofl.reporting.page import Additions, Picture, Repeat, pictures_of, repeat_command, seen_from, write_page
from harmofl.reporting.style import write_figures
from harmofl.reporting.tables import Table, methods_of, score_table
from harmofl.reporting.words import join_words, missing_sentence
from harmofl.runs.finished import FinishedRun


def report_experiment(folder: Path, page: Path, reference: str | None = None) -> None:
    """Write the page, and its figures as files beside it; `reference`: a row in place of the plan's own."""
    state = read_state(folder)
    runs = read_lines(folder)
    if not runs and state.shows == "samples":
        raise UsageError(f"{folder} holds an experiment that trains nothing: its pictures are in {folder / PICTURES}")
    if not runs:
        raise UsageError(f"{folder} holds an experiment without a finished cell: nothing to report")
    found = _compare(state, runs, reference)
    points = _points(state, runs)
    pictures = {**pictures_of(runs), **_pictures(runs, points), **_drift_terms(state, folder)}
    if state.holds_out:
        del pictures["sites"]  # of hospitals that took part
        pictures["unseen"] = _unseen_picture(runs)
    write_figures({_FILES[name]: pictures[name].figure for name in pictures}, folder / "figures")
    write_page(
        page,
        title=state.title,
        summary_sentences=_sentences(state, runs, found, points),
        runs=runs,
        next_steps=_next_steps(state, folder),
        additions=Additions(
            table=_table(state, runs),
            comparisons=found,
            paper=paper_table(state.paper) if state.paper else None,
            pictures=pictures,
            missing=_missing(state),
            gallery=read_gallery(folder),
            repeats=[_repeat(cell, folder, state) for cell in state.done],
            repeat_all=shlex.join([*_command(state, folder), "--out", f"../{folder.resolve().name}-again"]),
        ),
    )


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


def _compare(state: ExperimentState, runs: Sequence[FinishedRun], reference: str | None) -> list[Comparison]:
    places = {cell.label: (cell.row, cell.variation) for cell in state.cells}
    return compare_with(reference or state.reference, state.baseline, methods_of(runs), places)


def _points(state: ExperimentState, runs: Sequence[FinishedRun]) -> list[Point]:
    cells = {cell.label: (cell.row, cell.x if state.axis else cell.variation) for cell in state.cells}
    return points_of(runs, state.axis, cells)


def _pictures(runs: Sequence[FinishedRun], points: Sequence[Point]) -> dict[str, Picture]:
    """The figures that an experiment adds to those of its runs."""
    score = runs[0].score
    metric = score.words
    pictures = {}
    if points and points[0].axis:
        caption = f"Average {points[0].scored_on} {metric} against {drawings.words_for(points[0].axis)}. "
        caption += "Higher is better." if score.higher_is_better else "Lower is better."
        pictures["curve"] = Picture(drawings.score_curves(points), caption)
    elif points:
        caption = f"Average {points[0].scored_on} {metric} of each row under each variation. "
        caption += f"Further {score.better_direction} is better."
        pictures["variations"] = Picture(drawings.scores_by_variation(points), caption)
    if drawings.has_drift(runs):
        caption = "Drift Γ of each hospital in each round, averaged over seeds: a panel per method, all on one scale."
        pictures["drift-by-site"] = Picture(drawings.drift_by_site(runs), caption)
    if drawings.has_bytes(runs):
        caption = (
            f"{runs[0].scored_on.capitalize()} {metric} against what each hospital has sent and received up to then. "
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


def _drift_terms(state: ExperimentState, folder: Path) -> dict[str, Picture]:
    """The drift beside the terms of its bound, where `harmofl landscape` has measured them below this folder."""
    runs = terms_of_cells({cell.path: (cell.label, cell.seed) for cell in state.cells}, folder)
    return {"drift-terms": Picture(drift_with_terms(runs), CAPTION)} if runs else {}


def _sentences(
    state: ExperimentState, runs: Sequence[FinishedRun], found: Sequence[Comparison], points: Sequence[Point]
) -> list[str]:
    sentences = summarize_experiment(runs, found, points)
    if state.holds_out:
        sentences.insert(1, "Each score is of a hospital that took no part in the training of the model it scores.")
    return sentences + missing_sentence(len(state.without_scores), len(state.cells), "cell")


def _missing(state: ExperimentState) -> list[tuple[str, str]]:
    """Cells without scores and why, the seeds of a line together."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for cell in state.without_scores:
        reason = f"failed: {cell.error}" if cell.state == "failed" else "not run yet"
        seeds.setdefault((cell.line, reason), []).append(cell.seed)
    return [(f"{line}, {_seeds(own)}", reason) for (line, reason), own in seeds.items()]


def _seeds(numbers: Sequence[int]) -> str:
    return f"seed{'' if len(numbers) == 1 else 's'} {join_words([str(number) for number in numbers])}"


def _table(state: ExperimentState, runs: Sequence[FinishedRun]) -> Table:
    table = score_table(runs)
    kind = "at the hospital that took no part" if state.holds_out else "of the selected round"
    images = Path(state.data).name if state.data else "synthetic hospitals"
    notes = [*table.notes, f"Images: {images}. Preset: {state.preset}.", *unseen_notes(runs)]
    return replace(table, caption=f"{table.caption}, {kind}", notes=tuple(notes))


def _command(state: ExperimentState, folder: Path) -> list[str]:
    """The command that runs the experiment, as seen from its folder, where its plan lies."""
    data = _data_option(state, folder)
    return ["harmofl", "experiment", f"{state.experiment}.toml", *data, "--preset", state.preset]


def _data_option(state: ExperimentState, folder: Path) -> list[str]:
    return ["--data", seen_from(folder, Path(state.data))] if state.data else []


def _next_steps(state: ExperimentState, folder: Path) -> list[tuple[str, str]]:
    if not state.without_scores:
        return []
    return [("Run what is missing", f"{shlex.join([*_command(state, folder), '--out'])} . --resume")]


def _repeat(cell: CellState, folder: Path, state: ExperimentState) -> Repeat:
    """How to repeat a cell. A kept one has no file of settings, so it gets one, which does not name the images."""
    label, place = f"{cell.line}, {_seeds([cell.seed])}", folder / cell.folder
    if not is_kept(place):
        return Repeat(label, shlex.join(repeat_command(place, folder)))
    name, config = cell.path.replace("/", "-"), read_kept(place).config
    write_whole(folder / "configs" / f"{name}.toml", config)
    data = _data_option(state, folder)
    command = ["harmofl", "train", "--config", f"configs/{name}.toml", *data, "--out", f"{name}-again"]
    return Repeat(label, shlex.join(command), config)
