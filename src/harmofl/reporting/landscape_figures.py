"""Figures of the loss around trained models: contours, with the points that were computed, and surfaces.

Runs stand side by side on one scale. Colours go from dark to light as the loss rises, also in grey.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harmofl.analysis.losses import Array
from harmofl.analysis.measured_terms import read_terms
from harmofl.analysis.results import Landscape, View
from harmofl.labels import wrap
from harmofl.reporting import style
from harmofl.reporting.drift_figures import drift_with_terms
from harmofl.reporting.landscape_scale import (
    COLOUR_MAP,
    MEAN,
    PLANES,
    Scale,
    axis_ticks,
    finish_colour_bar,
    lowest_place,
)
from harmofl.reporting.landscape_surfaces import mean_surfaces, overlay, surfaces
from harmofl.reporting.style import INK, MARKERS, MUTED, PAPER, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FINE = 81
"""Points along an axis of the smooth surface that is drawn through those that were computed."""

AXES = {
    "near": "step along the first direction, in units of each filter's norm",
    "wide": "step along the first direction, in units of each filter's norm",
    "drift": "distance from the global model's weights",
}
LOWEST = "#d55e00"
MODEL: dict[str, Any] = {"marker": "+", "color": INK, "markersize": 9, "markeredgewidth": 1.6}
LOWEST_MARK: dict[bool, dict[str, Any]] = {
    False: {"marker": "x", "color": LOWEST, "markersize": 6.5, "markeredgewidth": 2.0},
    True: {"marker": "D", "color": LOWEST, "markersize": 6.0, "markeredgecolor": PAPER},
}
"""By whether it lies at the edge."""
POINT: dict[str, Any] = {"marker": "o", "color": PAPER, "markersize": 1.1, "markeredgewidth": 0, "linestyle": "none"}


@styled
def contours(landscape: Landscape, view: View) -> Figure:
    """Draw a row per run, a column per site and one for the mean: lines of equal loss and the sites' paths."""
    from matplotlib.figure import Figure

    rows, columns = len(landscape.runs), len(landscape.sites) + 1
    figure = Figure(figsize=(1.75 * columns + 1.3, 1.72 * rows + 1.3), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    scale = Scale.of(view.losses)
    for row, run in enumerate(landscape.runs):
        for column, losses in enumerate([*view.losses[row], view.mean[row]]):
            axes = panels[row, column]
            shown = _draw_contours(axes, view, scale, losses)
            members = range(len(landscape.sites)) if column == columns - 1 else [column]
            for site in members:
                _draw_path(axes, view.paths[row, site], site)
            _mark_places(axes, view, losses, bool(view.is_open[row, column]))
        panels[row, 0].set_ylabel(wrap(run, 18), color=INK, fontweight="bold")
    for column, place in enumerate([*landscape.sites, MEAN]):
        panels[0, column].set_title(wrap(place, 16), fontsize=11, loc="center", pad=6)
    finish_colour_bar(figure.colorbar(shown, ax=panels, shrink=0.8, aspect=28, pad=0.015), scale, landscape)
    figure.suptitle(f"Loss around the selected model: {PLANES[view.name]}", fontsize=12.5, fontweight="bold")
    panels[-1, columns // 2].set_xlabel(AXES[view.name])
    _name_marks(figure, has_open=bool(view.is_open.any()))
    return figure


def _draw_contours(axes: Axes, view: View, scale: Scale, losses: Array) -> Any:
    axis, fine = interpolate(view.axis, scale.heights(losses))
    values = scale.clip(10**fine if scale.is_log else fine)
    shown = axes.contourf(axis, axis, values, levels=scale.levels, norm=scale.norm(), cmap=COLOUR_MAP, extend="neither")
    shown.set_rasterized(True)
    axes.contour(axis, axis, values, levels=scale.levels, colors=PAPER, linewidths=0.45, alpha=0.7)
    axes.plot(*(points.ravel() for points in np.meshgrid(view.axis, view.axis)), rasterized=True, zorder=2.5, **POINT)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xticks(*axis_ticks(view), fontsize=9)
    axes.set_yticks(*axis_ticks(view), fontsize=9)
    return shown


def interpolate(axis: Array, values: Array) -> tuple[Array, Array]:
    """Give the same surface on a finer grid: a cubic spline through the computed points."""
    from scipy.interpolate import RectBivariateSpline

    fine = np.linspace(axis[0], axis[-1], FINE)
    return fine, np.asarray(RectBivariateSpline(axis, axis, values, kx=3, ky=3)(fine, fine))


def _draw_path(axes: Axes, path: Array, site: int) -> None:
    """Draw a site's path from the model; light with a dark rim, to be seen on every colour."""
    axes.plot(path[:, 0], path[:, 1], color=INK, linewidth=2.6, zorder=3, solid_capstyle="round")
    axes.plot(path[:, 0], path[:, 1], color=PAPER, linewidth=1.3, zorder=4, solid_capstyle="round")
    rim: dict[str, Any] = {"markeredgecolor": INK, "markeredgewidth": 0.9, "markersize": 5.5, "clip_on": False}
    axes.plot(*path[-1], marker=MARKERS[site % len(MARKERS)], color=PAPER, zorder=5, **rim)


def _mark_places(axes: Axes, view: View, losses: Array, is_open: bool) -> None:
    """Mark the model and the lowest loss, which has a light rim for grey prints."""
    axes.plot(0, 0, zorder=6, **MODEL)
    *place, _ = lowest_place(view, losses)
    if not is_open:
        axes.plot(*place, "x", color=PAPER, markersize=8.5, markeredgewidth=4.0, zorder=6, clip_on=False)
    axes.plot(*place, zorder=6, clip_on=False, **LOWEST_MARK[is_open])


def _name_marks(figure: Figure, has_open: bool) -> None:
    from matplotlib.lines import Line2D

    rim: dict[str, Any] = {"markerfacecolor": PAPER, "markeredgecolor": INK}
    marks: list[tuple[str, dict[str, Any]]] = [
        ("global model", MODEL | {"linestyle": "none"}),
        ("a site's further local epochs", {"marker": "o", "color": MUTED, "linewidth": 1.6, "markersize": 5.5} | rim),
        ("computed point", POINT | {"markersize": 4, "markeredgewidth": 0.6} | rim),
        ("lowest computed loss", LOWEST_MARK[False] | {"linestyle": "none"}),
    ]
    if has_open:
        marks.append(("lowest at the edge: falls further outside", LOWEST_MARK[True] | {"linestyle": "none"}))
    handles = [Line2D([], [], **look) for _, look in marks]
    ncols = 3 if figure.get_figwidth() > 8 else 2
    figure.legend(handles, [words for words, _ in marks], loc="outside lower center", ncols=ncols, fontsize=10)


FIGURES: dict[str, Callable[[Landscape, View], Figure]] = {
    "contours": contours,
    "surfaces": surfaces,
    "mean-surfaces": mean_surfaces,
    "overlay": overlay,
}


def write_figures(landscape: Landscape, out: Path) -> list[Path]:
    """Write every figure of every plane as PNG and SVG, `contours-near.png` and so on, and the drift with its terms."""
    written = []
    for name, draw in FIGURES.items():
        for view in landscape.views.values():
            written += style.write_figures({f"{name}-{view.name}": draw(landscape, view)}, out)
    if terms := read_terms(out):
        written += style.write_figures({"drift-terms": drift_with_terms(terms)}, out)
    return written
