"""The terms of the bound on the drift, and the constants that it assumes, of the runs of a landscape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harmofl.analysis.assumed_constants import Point, estimate_constants, second_line
from harmofl.analysis.drift_terms import bound
from harmofl.analysis.measured_terms import RunTerms, Terms, write_terms
from harmofl.analysis.results import Landscape
from harmofl.runs.finished import FinishedRun, read_run


def write_all_terms(runs: Sequence[Path], landscape: Landscape, out: Path) -> None:
    """Write, beside their landscape, each run's recorded drift and the terms that were measured at its model."""
    measured = []
    for number, (run, label) in enumerate(zip(runs, landscape.runs, strict=True)):
        folder = Path(os.path.relpath(run.resolve(), out.resolve())).as_posix()
        result = read_run(run)
        terms = terms_in(landscape, number, result.summary.get("best_round") or 0)
        measured.append(RunTerms(folder, label, drift_curves(result), terms))
    write_terms(out, measured)


def drift_curves(run: FinishedRun) -> dict[str, dict[int, float]]:
    """Each site's recorded drift by round."""
    curves: dict[str, dict[int, float]] = {}
    for record in run.records:
        if record["phase"] == "train" and record.get("drift") is not None:
            curves.setdefault(record["site"], {})[record["round"]] = record["drift"]
    return curves


def terms_in(landscape: Landscape, run: int, best_round: int = 0) -> Terms:
    """What was measured at a run's model, for as many steps as a local epoch has; the theorem takes the largest σ²."""
    squared, variances, drifts = (
        dict(zip(landscape.sites, values[run].tolist(), strict=True))
        for values in (landscape.squared_gradients, landscape.variances, landscape.drifts)
    )
    epsilon = float(landscape.distances[run].max())
    num_steps, step_size = float(landscape.num_steps[run].mean()), float(landscape.step_sizes[run])
    terms = bound(list(squared.values()), max(variances.values()), epsilon, num_steps, step_size)
    points = [Point(*values) for values in landscape.points[run].tolist()]
    constants = estimate_constants(points, landscape.betas[run].tolist())
    second = second_line(points[0], constants, terms, num_steps, step_size)
    return Terms(best_round, squared, variances, epsilon, drifts, terms, asdict(constants), second)
