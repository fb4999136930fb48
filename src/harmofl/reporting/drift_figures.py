"""The sites' drift beside the terms of the paper's bound on it, as measured: a row of two panels per run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmofl.analysis.measured_terms import RunTerms, Terms
from harmofl.labels import shorten, shorten_all
from harmofl.reporting.axes import spans_a_decade, use_log_axis
from harmofl.reporting.style import INK, MUTED, RULE, line_style, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("‖∇F‖²", "σ²", "ε", "Γ\nmeasured", "bound\non Γ", "its 2nd\nline")
WIDTH = 0.66
"""What the dots of a column fill; 1 is the distance of two columns."""

CAPTION = (
    "Left: the drift Γ of each hospital in each round, as recorded. Right: what the paper's bound on it is made of, "
    "measured afterwards at the model of the round marked on the left: the hospitals' squared gradients ‖∇F‖², the "
    "variance σ² of their mini-batches' gradients, the largest distance ε between two hospitals' gradients; then the "
    "drift Γ of one further local epoch, with a new optimizer and the full learning rate, and what the bound gives for "
    "as many steps of plain gradient descent: momentum and Adam, which it does not cover, go further. The second line "
    "of the bound takes constants in place of the gradients, estimated at this model and where the hospitals go from "
    "it. The theorem is not claimed as proven: its terms are shown, not relied on."
)


@styled
def drift_with_terms(runs: Sequence[RunTerms]) -> Figure:
    """Draw each run's drift by round and, beside it, the measured terms; all runs on one scale."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(9.2, 1.3 + 2.25 * len(runs)), layout="constrained")
    panels = figure.subplots(len(runs), 2, squeeze=False, sharex="col", sharey="col", width_ratios=(1.15, 1))
    sites = _sites(runs)
    for (left, right), run in zip(panels, runs, strict=True):
        _draw_curves(left, run, sites)
        _draw_terms(right, run, sites)
    drifts = [value for run in runs for curve in run.curves.values() for value in curve.values()]
    for axes, values in ((panels[0, 0], drifts), (panels[0, 1], [value for run in runs for value in _values(run)])):
        if spans_a_decade(values):
            use_log_axis(axes)
    _name_axes(figure, panels)
    names = shorten_all(sites, 22)
    handles = [Line2D([], [], label=name, **_curve_style(index)) for index, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=10)
    return figure


def _sites(runs: Sequence[RunTerms]) -> list[str]:
    """Every site of which anything was measured or recorded: centralized training records the drift of all as one."""
    measured = [site for run in runs for site in run.terms.drifts]
    return list(dict.fromkeys([*measured, *(site for run in runs for site in run.curves)]))


def _curve_style(index: int) -> dict[str, Any]:
    return line_style(index) | {"linewidth": 1.4, "markersize": 4.5}


def _draw_curves(axes: Axes, run: RunTerms, sites: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    if run.terms.round:
        axes.axvline(run.terms.round, color=RULE, linewidth=5, zorder=0)
    for site, curve in run.curves.items():
        index, step = sites.index(site), max(1, len(curve) // 4)
        markers = (index * step // len(sites), step)  # side by side, not on top of one another
        axes.plot(list(curve), list(curve.values()), markevery=markers, **_curve_style(index))
    axes.set_title(shorten(run.label, 44), fontsize=11, pad=6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="x", visible=False)


def _draw_terms(axes: Axes, run: RunTerms, sites: Sequence[str]) -> None:
    shifts = np.linspace(-WIDTH / 2, WIDTH / 2, max(2, len(sites))).tolist()
    for column, values in enumerate(_columns(run.terms)):
        if len(values) == 1:  # one number for all sites: a dash as wide as their dots would be
            ends = (column + shifts[0], column + shifts[-1])
            axes.plot(ends, 2 * [*values.values()], color=INK, linewidth=2.6, solid_capstyle="butt")
            continue
        for site, value in values.items():
            style = line_style(sites.index(site)) | {"linestyle": "none", "markersize": 5, "markeredgewidth": 0.4}
            axes.plot([column + shifts[sites.index(site)]], [value], **style)
    axes.grid(axis="x", visible=False)
    where = f"at the selected round, {run.terms.round}" if run.terms.round else "at the selected models"
    axes.set_title(where, fontsize=10, fontweight="normal", color=MUTED, pad=6)
    shown = COLUMNS[: len(list(_columns(run.terms)))]
    axes.set_xticks(range(len(shown)), shown)
    axes.set_xlim(-0.5, len(shown) - 0.5)
    axes.tick_params(axis="x", length=0, labelcolor=INK)


def _columns(terms: Terms) -> Iterator[Mapping[str, float]]:
    """What stands in each column: a number per site, or one for all."""
    yield from (terms.squared_gradients, terms.variances, {"": terms.epsilon}, terms.drifts)
    yield {"": sum(terms.bound.values())}
    if terms.second_line:
        yield {"": terms.second_line["in general"]}


def _values(run: RunTerms) -> list[float]:
    return [value for values in _columns(run.terms) for value in values.values()]


def _name_axes(figure: Figure, panels: Any) -> None:
    panels[-1, 0].set_xlabel("round")
    for column, words in zip(panels.T, ("Γ of each site", "as measured"), strict=True):
        scale = ", log scale" if column[0].get_yscale() == "log" else ""
        for axes in column:
            axes.set_ylabel(f"{words}{scale}", fontsize=10)
    figure.suptitle("Drift, and the terms of the bound on it", fontsize=12.5, fontweight="bold")
