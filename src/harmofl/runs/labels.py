"""What runs are called where several stand side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harmofl.runs.finished import FinishedRun


def label_distinctly(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Runs under their titles; equal titles are followed by the part of the run's path that tells them apart."""
    return [run.with_label(_label(run, [other for other in runs if other.title == run.title])) for run in runs]


def _label(run: FinishedRun, alike: Sequence[FinishedRun]) -> str:
    part = _distinct_part(run.folder, [other.folder for other in alike]) if len(alike) > 1 else ""
    return f"{run.title} ({part})" if part and part.lower() != run.title.lower() else run.title


def _distinct_part(folder: Path, folders: Sequence[Path]) -> str:
    """The last part of the path in which no two are the same: `amplitude` of `amplitude/seed-0`, `both/seed-0`."""
    reversed_paths = [other.resolve().parts[::-1] for other in folders]
    for place, part in enumerate(folder.resolve().parts[::-1]):
        if len({path[place].lower() for path in reversed_paths if place < len(path)}) == len(folders):
            return part
    return str(folder)
