"""The lines of an experiment's table: runs under the names that the plan gives them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w

from harmofl.data.facts import DataFacts
from harmofl.experiments.kept import PATHS, is_kept, read_kept
from harmofl.experiments.state import read_state
from harmofl.reporting.experiment_figures import Point, Setting
from harmofl.reporting.tables import methods_of
from harmofl.runs.finished import FinishedRun, read_run
from harmofl.settings import flatten, nest


@dataclass(frozen=True)
class Line:
    """A finished cell, and the line of the table to which it belongs."""

    label: str
    held_out: str | None
    run: FinishedRun


def label_runs(lines: Sequence[Line], data: str | None, scores: str = "test") -> list[FinishedRun]:
    """Prepare runs for one table: the labels tell them apart, so that settings and facts that differ are dropped.

    `scores`: on which images those that the table shows were taken.
    """
    runs = [line.run.with_label(line.label) for line in lines]
    if scores == "validation":
        runs = [run.on_validation() for run in runs]
    if any(line.held_out for line in lines):
        runs = _join_held_out_sites(lines)
    one_norm = len({run.norm for run in runs}) < 2
    settings = [flatten(run.settings) for run in runs]
    names = dict.fromkeys(name for values in settings for name in values if name.startswith("data."))
    dropped = {name for name in names if len({str(values.get(name)) for values in settings}) > 1} | set(PATHS)
    where = {"data.folder": Path(data).name} if data else {}
    same_images = len({run.facts for run in runs}) < 2
    return [
        replace(
            run,
            summary={**run.summary, "norm": run.norm if one_norm else ""},
            config=tomli_w.dumps(nest({name: values[name] for name in values if name not in dropped} | where)),
            facts=run.facts if same_images else DataFacts(run.is_synthetic, sites=(), channels=0, classes=()),
        )
        for run, values in zip(runs, settings, strict=True)
    ]


def _join_held_out_sites(lines: Sequence[Line]) -> list[FinishedRun]:
    """Make one run per label and seed, whose score at each site is that of the model that never saw the site."""
    groups: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.label, line.run.seed), []).append(line)
    return [_join(group) for group in groups.values()]


def _join(lines: Sequence[Line]) -> FinishedRun:
    unseen = {str(line.held_out): line.run.summary["unseen"][line.held_out] for line in lines}
    scores = {site: found["metric"] for site, found in unseen.items()}
    test = scores | {"average": statistics.fmean(scores.values())}
    rounds = {str(line.held_out): number for line in lines if (number := line.run.summary.get("best_round"))}
    run = lines[0].run.with_label(lines[0].label)
    joined = {"test": test, "unseen": unseen, "best_round": None, "best_rounds": rounds}
    return replace(run, summary={**run.summary, **joined}, records=[])


def points_of(
    runs: Sequence[FinishedRun], axis: str | None, places: Mapping[str, tuple[str, Setting | None]]
) -> list[Point]:
    """The table's lines as points along an axis, or by the names of variations; `places`: row and setting by label."""
    found = [(*places[method.label], method) for method in methods_of(runs)]
    return [Point(row, axis, setting, method) for row, setting, method in found if setting not in (None, "")]


def read_lines(folder: Path) -> list[FinishedRun]:
    """Read the labelled runs of an experiment's folder, including those that were kept elsewhere."""
    state = read_state(folder)
    lines = [Line(cell.label, cell.held_out, read_finished(folder / cell.folder)) for cell in state.done]
    return label_runs(lines, state.data, state.scores)


def read_finished(place: Path) -> FinishedRun:
    """Read a run's folder, or what was kept of one."""
    return read_kept(place) if is_kept(place) else read_run(place)
