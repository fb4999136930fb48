"""The results of an experiment so far: every cell's scores or error."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harmofl.experiments.cells import Cell, Experiment, FindFacts
from harmofl.experiments.kept import Kept, agree
from harmofl.experiments.lines import Line, label_runs
from harmofl.reporting.comparisons import Comparison, compare_with
from harmofl.reporting.tables import methods_of
from harmofl.runs.finished import FinishedRun, read_facts, read_run, read_settings
from harmofl.runs.folder import RunFolder


@dataclass
class Results:
    """The cells that are done and those that failed; all others are missing."""

    experiment: Experiment
    runs: dict[str, FinishedRun] = field(default_factory=dict)
    """Finished runs by the path of their cell."""
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[Cell]:
        """The cells without scores."""
        return [cell for cell in self.experiment.cells if cell.path not in self.runs]

    def lines(self) -> list[FinishedRun]:
        """The runs under the names that the table gives them."""
        done = [cell for cell in self.experiment.in_table_order if cell.path in self.runs]
        lines = [Line(cell.label, cell.held_out, self.runs[cell.path]) for cell in done]
        return label_runs(lines, self.experiment.data, self.experiment.plan.scores)

    def comparisons(self) -> list[Comparison]:
        """Compare each line with the plan's reference row under the same variation."""
        runs = self.lines()
        places = {cell.label: (cell.row, cell.variation) for cell in self.experiment.cells}
        plan = self.experiment.plan
        if plan.reference_row not in (row for row, _ in places.values()):  # not run yet
            return []
        return compare_with(plan.reference_row, plan.usual_variation, methods_of(runs), places) if runs else []

    def to_json(self, start: Path) -> dict[str, Any]:
        """All results as JSON; folders are relative to `start`."""
        plan = self.experiment.plan
        first = next(iter(self.runs.values()), None)
        return {
            "experiment": self.experiment.name,
            "title": plan.title,
            "task": plan.task,
            "preset": self.experiment.preset,
            "data": self.experiment.data,
            "shows": plan.shows,
            "axis": plan.axis,
            "scores": plan.scores,
            "reference": plan.reference_row,
            "baseline": plan.usual_variation,
            "paper": plan.paper.model_dump() if plan.paper else None,
            "metric_name": first.summary["metric_name"] if first else None,
            "done": len(self.runs),
            "missing": [cell.path for cell in self.missing],
            "cells": [self._cell_json(cell, start) for cell in self.experiment.in_table_order],
            "comparisons": [asdict(found) | {"verdict": found.verdict} for found in self.comparisons()],
        }

    def _cell_json(self, cell: Cell, start: Path) -> dict[str, Any]:
        place = {
            "path": cell.path,
            "label": cell.label,
            "row": cell.row,
            "variation": cell.variation,
            "held_out": cell.held_out,
            "seed": cell.seed,
        }
        if axis := self.experiment.plan.axis:
            place["x"] = cell.setting(axis)
        if cell.path not in self.runs:
            error = self.errors.get(cell.path)
            return place | ({"state": "failed", "error": error} if error else {"state": "missing"})
        run = self.runs[cell.path]
        scores = {name: run.summary.get(name) for name in ("test", "unseen", "best_round", "missing", "seconds")}
        return place | {"state": "done", "folder": Path(os.path.relpath(run.folder, start)).as_posix()} | scores


def gather(
    experiment: Experiment,
    out: Path | None = None,
    kept: Kept | None = None,
    find_facts: FindFacts = lambda settings: None,
) -> Results:
    """Gather the cells that are done already, in the experiment's folder or among kept results.

    `find_facts` looks at a cell's images, so that results of other images do not count.
    """
    results = Results(experiment)
    for planned in experiment.cells:
        cell = planned.add_facts(find_facts)
        folder = out / cell.path if out else None
        if folder and is_done(cell, folder):
            results.runs[cell.path] = read_run(folder)
        elif kept and (found := kept.find(experiment, cell)):
            results.runs[cell.path] = found.run()
    return results


def is_done(cell: Cell, folder: Path) -> bool:
    """Whether a folder holds the finished run of a cell."""
    return RunFolder(folder).summary.exists() and agree(cell, read_settings(folder), read_facts(folder))
