"""Scores and drift of finished runs, as figures."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmofl.reporting.axes import (
    ignore_first_rounds,
    lanes,
    legend_below,
    mean_label,
    name_lines,
    rows_down,
    spans_a_decade,
    spread_label,
    use_log_axis,
)
from harmofl.reporting.style import MUTED, RULE, line_style, styled
from harmofl.reporting.tables import MethodScores, methods_of, sample_std, sites_of
from harmofl.runs.finished import FinishedRun

if TYPE_CHECKING:
    # Imported where it is used: loading matplotlib takes longer than most commands.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = dict[int, float]


@styled
def convergence(runs: Sequence[FinishedRun]) -> Figure:
    """Draw the test score after each round: the mean over sites, with a band of one std over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    methods = methods_of(runs)
    for index, method in enumerate(methods):
        curves = [test_curve(run) for run in method.runs]
        _draw_curves(axes, curves, index, method.label)
        if rings_selected_rounds(methods):
            _ring_selected_round(axes, method, curves, index)
    ignore_first_rounds(axes)
    _finish(
        figure,
        axes,
        methods,
        f"{runs[0].scored_on.capitalize()} {runs[0].score.words} by round",
        mean_label(runs[0].score),
    )
    return figure


@styled
def drift(runs: Sequence[FinishedRun]) -> Figure:
    """Draw the drift Γ of each round, averaged over the sites that answered."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    methods = methods_of(runs)
    curves = {method.label: [drift_curve(run) for run in method.runs] for method in methods}
    for index, method in enumerate(methods):
        _draw_curves(axes, curves[method.label], index, method.label)
    values = [value for group in curves.values() for curve in group for value in curve.values()]
    is_wide = spans_a_decade(values)
    if is_wide:
        use_log_axis(axes)
    scale = ", log scale" if is_wide else ""
    _finish(figure, axes, methods, "Drift of the sites by round", f"Γ, mean over sites{scale}")
    return figure


def test_curve(run: FinishedRun) -> Curve:
    """Average the test scores of each round; rounds that lack a site are left out, as the mean would jump."""
    rounds = values_per_round(run, "test", "metric")
    expected = set(run.scores)
    complete = {number: values for number, values in rounds.items() if expected <= values.keys()}
    means = {number: statistics.fmean(values[site] for site in expected) for number, values in complete.items()}
    return {number: run.score.in_unit(mean) for number, mean in means.items()}


def drift_curve(run: FinishedRun) -> Curve:
    """Average the drift over the sites of each round."""
    rounds = values_per_round(run, "train", "drift")
    return {number: statistics.fmean(values.values()) for number, values in rounds.items()}


def values_per_round(run: FinishedRun, phase: str, name: str) -> dict[int, dict[str, float]]:
    """Collect a number of every round and site from the records; what failed or is not finite is left out."""
    rounds: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for record in run.records:
        value = record.get(name)
        if record["phase"] != phase or record["site"] == "server" or "error" in record or value is None:
            continue
        if math.isfinite(value):
            rounds[record["round"]][record["site"]] = value
    return rounds


def _draw_curves(axes: Axes, curves: Sequence[Curve], index: int, label: str) -> None:
    """Draw the mean over seeds, of the rounds that every seed has."""
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not rounds:
        return
    values = np.array([[curve[number] for number in rounds] for curve in curves])
    mean = values.mean(axis=0)
    style = line_style(index)
    axes.plot(rounds, mean, label=label, markevery=max(1, len(rounds) // 8), **style)
    if len(curves) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(rounds, mean - spread, mean + spread, color=style["color"], alpha=0.16, linewidth=0)


def rings_selected_rounds(methods: Sequence[MethodScores]) -> bool:
    """Whether convergence shows which round was selected: with one seed and few methods."""
    return len(methods) <= 4 and all(len(method.runs) == 1 for method in methods)


def _ring_selected_round(axes: Axes, method: MethodScores, curves: Sequence[Curve], index: int) -> None:
    selected = method.runs[0].summary.get("best_round")
    if selected in curves[0]:
        colour = line_style(index)["color"]
        axes.plot([selected], [curves[0][selected]], "o", markersize=13, fillstyle="none", color=colour)


def _finish(figure: Figure, axes: Axes, methods: Sequence[MethodScores], title: str, quantity: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title)
    axes.set_xlabel("round" + spread_label(methods, "band"))
    axes.set_ylabel(quantity)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="x", visible=False)
    if axes.lines:
        name_lines(figure, axes)
    else:
        note = "not in the records of these runs"
        axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", color=MUTED)


@styled
def per_site_scores(runs: Sequence[FinishedRun]) -> Figure:
    """Draw each method's test score at each site, with bars of one std over seeds."""
    from matplotlib.figure import Figure

    methods, sites = methods_of(runs), sites_of(runs)
    places = lanes(len(methods))
    height = 1.7 + len(sites) * max(0.42, 0.16 * len(methods))
    figure = Figure(figsize=(6.8, height), layout="constrained")
    axes = figure.add_subplot()
    for row, site in enumerate(sites):
        scores = [method.mean_at(site) for method in methods]
        if len(methods) == 2:  # the gap itself is what one looks for
            axes.plot(scores, [row, row], color=RULE, linewidth=6, solid_capstyle="round", zorder=1)
    for index, method in enumerate(methods):
        # Of two equal scores on one line, both stay visible.
        style = line_style(index) | {"markersize": 10 if len(methods) == 2 and index == 0 else 7.5}
        draw_site_dots(axes, method, sites, places[index], style)
    axes.set_title(f"{runs[0].scored_on.capitalize()} {runs[0].score.words} at each site")
    axes.set_xlabel(runs[0].score.unit + spread_label(methods, "bars"))
    rows_down(axes, sites)
    legend_below(figure, axes)
    return figure


def draw_site_dots(axes: Axes, method: MethodScores, sites: Sequence[str], lane: float, style: dict[str, Any]) -> None:
    """Draw a method's scores beside the sites' names, with bars of one std over seeds."""
    means = [method.mean_at(site) for site in sites]
    spreads = [sample_std(method.at(site)) or 0.0 for site in sites]
    rows = [row + lane for row in range(len(sites))]
    if len(method.runs) > 1:
        axes.errorbar(means, rows, xerr=spreads, fmt="none", ecolor=style["color"], elinewidth=1.6, zorder=2)
    axes.plot(means, rows, label=method.label, zorder=3, **(style | {"linestyle": "none"}))
