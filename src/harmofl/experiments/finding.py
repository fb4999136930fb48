"""The finished runs in some folders, each of a run or of an experiment."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harmofl.errors import UsageError
from harmofl.experiments.state import is_experiment, read_state
from harmofl.runs.finished import FinishedRun, read_run
from harmofl.runs.labels import label_distinctly
from harmofl.settings import differences

logger = logging.getLogger(__name__)


def find_runs(folders: Sequence[Path], data: Path | None = None) -> list[FinishedRun]:
    """The runs in some folders, under labels that differ; of an experiment, the first seed of each line.

    All must have the same images, which lie in `data` if they are no longer where they were.
    """
    if not folders:
        raise UsageError("no run given: name the folder of a finished run or of an experiment")
    each = [run for folder in folders for run in _runs_in(folder)]
    different = {run.folder.resolve(): run for run in each}  # a run that is named twice is shown once
    runs = [_with_images(run, data) for run in label_distinctly(list(different.values()))]
    for run in runs[1:]:
        _check_comparable(runs[0], run)
    return runs


def _runs_in(folder: Path) -> Iterator[FinishedRun]:
    if not is_experiment(folder):
        yield read_run(folder)
        return
    for label, place in _first_seeds(folder).items():
        yield read_run(place).with_label(label)


def _first_seeds(folder: Path) -> dict[str, Path]:
    """Of each line of an experiment, the run with the lowest seed whose model is there."""
    done = read_state(folder).done
    first: dict[str, Path] = {}
    for cell in sorted(done, key=lambda cell: cell.seed):
        place = folder / cell.folder
        if (place / "model" / "model.json").exists():
            first.setdefault(cell.label, place)
    lines = list(dict.fromkeys(cell.label for cell in done))
    without = [label for label in lines if label not in first]
    if without:
        logger.warning("%s: no model is kept of %s, so left out", folder, ", ".join(without))
    if not first:
        raise UsageError(f"{folder}: an experiment without a finished run that has its model")
    return {label: first[label] for label in lines if label in first}


def _with_images(run: FinishedRun, data: Path | None) -> FinishedRun:
    """The run with the folder in which its images lie now."""
    settings = run.full_settings
    if data is not None and not settings.data.folder:
        raise UsageError(f"data = {str(data)!r}: {run.folder} was trained on synthetic hospitals")
    if data is not None:
        settings = settings.with_values("data", folder=os.path.abspath(data))
    where = settings.data.folder
    if where and not Path(where).is_dir():
        hint = "no such folder" if data is not None else "the run's images are gone; say where they lie, with --data"
        raise UsageError(f"data.folder = {where!r}: {hint}")
    return replace(run, config=settings.to_toml())


def _check_comparable(first: FinishedRun, other: FinishedRun) -> None:
    changed = differences(first.full_settings, other.full_settings)
    named = [name for name in changed if name == "task" or name.startswith("data.")]
    if named:
        raise UsageError(
            f"{first.folder} and {other.folder} differ in {', '.join(named)}: "
            "only runs on the same images can stand side by side"
        )
