"""The terms of the bound on the drift, as they were measured for some runs: one small file, for figures and reports."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harmofl.documents import read_json
from harmofl.errors import UsageError
from harmofl.files import write_whole

FILE = "drift-terms.json"

BySite = Mapping[str, float]


@dataclass(frozen=True)
class Terms:
    """What was measured at the selected model of a run."""

    round: int
    """Its round; 0 where each site selected its own."""
    squared_gradients: BySite
    """‖∇F_i‖²."""
    variances: BySite
    """σ_i² over mini-batches."""
    epsilon: float
    """The largest ‖∇F_i − ∇F_j‖."""
    drifts: BySite
    """Γ_i of one further local epoch, with a new optimizer and the full learning rate."""
    bound: Mapping[str, float]
    """The theorem's terms, for as many steps of plain gradient descent; their sum would bound the mean Γ."""
    constants: Mapping[str, float] = field(default_factory=dict)
    """What the theorem's second line assumes, as estimated; empty in files of before 0.2."""
    second_line: Mapping[str, float] = field(default_factory=dict)
    """The bound of the second line, in general and if losses were convex."""


@dataclass(frozen=True)
class RunTerms:
    """A run's drift of every site and round, as recorded, and the terms that were measured afterwards."""

    run: str
    """Its folder, as seen from the file's."""
    label: str
    curves: Mapping[str, Mapping[int, float]]
    terms: Terms


def write_terms(folder: Path, runs: Sequence[RunTerms]) -> None:
    """Write the file into a folder."""
    content = {"runs": [asdict(run) for run in runs]}
    write_whole(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_terms(folder: Path) -> list[RunTerms]:
    """Read a folder's file; nothing if it has none."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        content = read_json(path)
        return [_run_terms(**values) for values in content["runs"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not what harmofl landscape writes: {error!r}") from None


def terms_of_cells(cells: Mapping[str, tuple[str, int]], folder: Path) -> list[RunTerms]:
    """What was measured of an experiment's cells, in their order, under their labels.

    cells:  {path below the folder: (label, seed)}
    folder: the experiment's; the files lie in it or one folder below, such as `landscape/drift-terms.json`.
    """
    by_place: dict[str, RunTerms] = {}
    for path in sorted([*folder.glob(FILE), *folder.glob(f"*/{FILE}")]):
        for run in read_terms(path.parent):
            by_place[os.path.normpath(path.parent / run.run)] = run
    measured = {path: by_place[place] for path in cells if (place := os.path.normpath(folder / path)) in by_place}
    labels = [cells[path][0] for path in measured]
    return [replace(run, label=_label(*cells[path], labels)) for path, run in measured.items()]


def _label(label: str, seed: int, labels: Sequence[str]) -> str:
    return f"{label}, seed {seed}" if labels.count(label) > 1 else label


def _run_terms(run: str, label: str, curves: Mapping[str, Mapping[str, float]], terms: Mapping[str, Any]) -> RunTerms:
    numbered = {site: {int(number): drift for number, drift in curve.items()} for site, curve in curves.items()}
    return RunTerms(run, label, numbered, Terms(**terms))
