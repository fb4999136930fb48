"""Runs in a list, and two of them side by side: plain values for tables and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harmofl.errors import UsageError, unknown_name
from harmofl.runs.status import RunStatus, find_run_folders, read_status
from harmofl.settings import flatten


@dataclass(frozen=True)
class ListedRun:
    """A run and what a list calls it: its path below the folder that was looked in."""

    name: str
    status: RunStatus

    @property
    def score(self) -> str:
        """The mean test score, or the best validation score so far."""
        status = self.status
        if status.average is not None:
            return status.score.format(status.average)
        return f"{status.score.format(status.best[1])} (validation)" if status.best else ""

    @property
    def rounds(self) -> str:
        """How many are done, and of how many if there are others to come."""
        done, planned = self.status.done_rounds, self.status.planned_rounds
        return f"{done}" if done == planned else f"{done} of {planned}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        status, best = self.status, self.status.best
        return {
            "run": self.name,
            "method": status.method,
            "task": status.task,
            "images": status.images,
            "seed": status.config.get("seed"),
            "rounds": status.done_rounds,
            "planned_rounds": status.planned_rounds,
            "score": status.score.name,
            "test": status.average,
            "best_round": best and best[0],
            "best_validation": best and best[1],
            "state": status.state,
            "problem": status.problem,
        }


def list_runs(folder: Path) -> list[ListedRun]:
    """Every run in a folder, or the folder's own."""
    places = find_run_folders(folder)
    return [ListedRun(_name(place, folder), read_status(place)) for place in places]


def _name(place: Path, folder: Path) -> str:
    return place.relative_to(folder).as_posix() if place != folder else folder.resolve().name


def find_listed(runs: Sequence[ListedRun], name: str) -> ListedRun:
    """The run that a user means: by its name in the list, or by its path."""
    for run in runs:
        if run.name == name.rstrip("/") or run.status.folder.resolve() == Path(name).resolve():
            return run
    raise unknown_name("run", name, [run.name for run in runs])


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    runs: tuple[ListedRun, ListedRun]

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """Every setting in which they differ, with both values; None where one has no such setting."""
        one, other = (flatten(run.status.config) for run in self.runs)
        names = [*one, *(name for name in other if name not in one)]
        return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}

    @property
    def scores(self) -> dict[str, tuple[float | None, float | None]]:
        """Each site's test score in both, and the average; validation scores of the best round if a run has no test."""
        one, other = (scores_of(run.status, self.phase) for run in self.runs)
        sites = [site for site in dict.fromkeys([*one, *other]) if site != "average"]
        return {site: (one.get(site), other.get(site)) for site in [*sites, "average"]}

    @property
    def phase(self) -> str:
        """Which scores both have: test, or val."""
        return "test" if all(run.status.summary for run in self.runs) else "val"

    @property
    def comparable(self) -> bool:
        """Whether the scores are of the same kind."""
        one, other = (run.status.score for run in self.runs)
        return one.name == other.name and one.unit == other.unit

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "runs": [run.to_json() for run in self.runs],
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "phase": self.phase,
            "scores": {site: list(pair) for site, pair in self.scores.items()},
        }


def scores_of(status: RunStatus, phase: str) -> dict[str, float]:
    """A run's scores by site and their average: of its test images, or of validation images in the best round."""
    if phase == "test" and status.summary:
        return {site: score for site, score in status.summary["test"].items() if site != "std" and score is not None}
    if status.best is None:
        return {}
    number, mean = status.best
    own = {site: best.score for site, best in status.selection.best.items()}
    return (own if number is None else status.validation[number]) | {"average": mean}


def compare(runs: Sequence[ListedRun], names: Sequence[str]) -> Comparison:
    """Two runs of a list, by their names."""
    if len(names) != 2:
        raise UsageError(f"{', '.join(names)}: name two runs to compare, or none to list all")
    return Comparison((find_listed(runs, names[0]), find_listed(runs, names[1])))
