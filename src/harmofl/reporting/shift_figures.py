"""A picture of why a method fails where it does: scores against how far features lie from the statistics in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harmofl.labels import shorten
from harmofl.reporting.axes import legend_below
from harmofl.reporting.style import MUTED, line_style, styled
from harmofl.reporting.tables import methods_of, sites_of
from harmofl.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_NAME = 14


@styled
def scores_by_shift(runs: Sequence[FinishedRun], shifts: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw a mark for each method and site; `shifts`: by the method's label, then by site."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 4.4), layout="constrained")
    axes = figure.add_subplot()
    score = runs[0].score
    for number, method in enumerate(methods_of(runs)):
        places = [(shifts.get(method.label, {}).get(site), method.mean_at(site), site) for site in sites_of(runs)]
        shown = [(shift, value, site) for shift, value, site in places if shift is not None]
        style = line_style(number) | {"linestyle": "none", "markersize": 8}
        axes.plot([x for x, _, _ in shown], [y for _, y, _ in shown], label=method.label, **style)
        for shift, value, site in shown:
            axes.annotate(
                shorten(site, LONGEST_NAME), (shift, value), (6, 4), textcoords="offset points", fontsize=8, color=MUTED
            )
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    axes.set(
        xlabel="shift of the hospital's features from the statistics in use, in standard deviations",
        ylabel=score.words_with_unit,
        title="Why scores differ between hospitals",
    )
    legend_below(figure, axes)
    return figure
