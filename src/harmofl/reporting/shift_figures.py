"""A picture of why a method fails where it does: scores against how far features lie from the statistics in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harmofl.labels import shorten
from harmofl.reporting.axes import legend_below
from harmofl.reporting.style import MUTED, line_style, styled
from harmofl.reporting.tables import methods_of, sites_of
from harmofl.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_NAME = 14
ROOM = (0.15, 0.05)
"""Of a name, as parts of the width and the height that the marks take."""


Mark = tuple[float, float, str]
"""Shift, score and site."""


@styled
def scores_by_shift(runs: Sequence[FinishedRun], shifts: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw a mark for each method and site; `shifts`: by the method's label, then by site."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 4.4), layout="constrained")
    axes = figure.add_subplot()
    marks: list[Mark] = []
    for number, method in enumerate(methods_of(runs)):
        own = shifts.get(method.label, {})
        shown = [(own[site], method.mean_at(site), site) for site in sites_of(runs) if site in own]
        style = line_style(number) | {"linestyle": "none", "markersize": 8}
        axes.plot([shift for shift, _, _ in shown], [value for _, value, _ in shown], label=method.label, **style)
        marks += shown
    for shift, value, site in without_crowds(marks):
        name = shorten(site, LONGEST_NAME)
        axes.annotate(name, (shift, value), (7, 4), textcoords="offset points", fontsize=8.5, color=MUTED)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set(
        xlabel="shift of the hospital's features from the statistics in use, in standard deviations",
        ylabel=runs[0].score.words_with_unit,
        title="Why scores differ between hospitals",
    )
    legend_below(figure, axes)
    return figure


def without_crowds(marks: Sequence[Mark]) -> list[Mark]:
    """The marks that have room for a name: none lies beside another one, within a part of the picture."""
    places = np.array([mark[:2] for mark in marks], dtype=np.float64).reshape(-1, 2)
    room = np.array(ROOM) * np.ptp(places, axis=0) if marks else np.zeros(2)
    near = np.all(np.abs(places[:, None] - places[None]) < room, axis=2)
    np.fill_diagonal(near, False)
    return [mark for mark, crowded in zip(marks, near.any(axis=1), strict=True) if not crowded]
