"""The loss around trained models as surfaces: of every site, of their mean, and of two sites in one picture.

The corners of a surface's mesh are the points that were computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from harmofl.analysis.losses import Array
from harmofl.analysis.results import Landscape, View
from harmofl.labels import shorten, wrap
from harmofl.reporting.landscape_scale import (
    COLOUR_MAP,
    MEAN,
    PLANES,
    Scale,
    axis_ticks,
    finish_colour_bar,
    lowest_place,
)
from harmofl.reporting.style import COLOURS, INK, MARKERS, PAPER, RULE, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TWO = tuple(zip(COLOURS[:2], MARKERS[:2], strict=True))


@styled
def surfaces(landscape: Landscape, view: View) -> Figure:
    """Draw the loss as a surface: a row per run, a column per site and one for the mean."""
    from matplotlib.figure import Figure

    rows, columns = len(landscape.runs), len(landscape.sites) + 1
    figure = Figure(figsize=(2.0 * columns + 1.2, 1.9 * rows + 0.8))
    scale = Scale.of(view.losses)
    for row in range(rows):
        for column, losses in enumerate([*view.losses[row], view.mean[row]]):
            axes = figure.add_subplot(rows, columns, row * columns + column + 1, projection="3d")
            _draw_surface(axes, view, scale, losses, cmap=COLOUR_MAP)
            _clear_walls(axes)
            axes.set_axis_off()
            axes.set_box_aspect((1, 1, 0.8), zoom=1.22)
    _name_panels(figure, landscape, view, scale)
    return figure


@styled
def mean_surfaces(landscape: Landscape, view: View) -> Figure:
    """Draw the mean loss over sites as one large surface per run."""
    scale = Scale.of(view.mean)
    figure, panels = _row_of_surfaces(landscape)
    for axes, losses in zip(panels, view.mean, strict=True):
        _draw_surface(axes, view, scale, losses, cmap=COLOUR_MAP)
        _label_axes(axes, view, scale)
    figure.suptitle(f"Mean loss over sites: {PLANES[view.name]}", fontsize=12.5, fontweight="bold")
    return figure


@styled
def overlay(landscape: Landscape, view: View) -> Figure:
    """Draw the surfaces of the two sites whose gradients differ most in one picture per run."""
    from matplotlib.lines import Line2D

    pair = landscape.farthest_pair()
    scale = Scale.of(view.losses[:, list(pair)])
    figure, panels = _row_of_surfaces(landscape)
    for run, axes in enumerate(panels):
        for site, (colour, marker) in zip(pair, TWO, strict=True):
            _draw_surface(axes, view, scale, view.losses[run, site], color=colour, alpha=0.55)
            _mark_lowest(axes, view, scale, view.losses[run, site], colour, marker)
        _mark_model(axes, scale)
        _label_axes(axes, view, scale)
    handles = [
        Line2D([], [], marker=marker, color=colour, markeredgecolor=INK, linewidth=6, alpha=0.8)
        for colour, marker in TWO
    ]
    handles.append(Line2D([], [], color=INK, linestyle=(0, (4, 2)), linewidth=1.4))
    names = [*(f"{shorten(landscape.sites[site], 26)} (mark: its lowest loss)" for site in pair), "global model"]
    columns = min(3, len(landscape.runs))
    figure.legend(handles, names, loc="lower center", ncols=columns)
    figure.subplots_adjust(bottom=0.07 * math.ceil(3 / columns))
    figure.suptitle(f"Two sites' losses: {PLANES[view.name]}", fontsize=12.5, fontweight="bold")
    return figure


def _row_of_surfaces(landscape: Landscape) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    count = len(landscape.runs)
    figure = Figure(figsize=(3.7 * count + 0.4, 4.1))
    panels = [figure.add_subplot(1, count, number + 1, projection="3d") for number in range(count)]
    figure.subplots_adjust(left=0.0, right=0.96, bottom=0.07, top=0.85, wspace=0.04)
    for axes, run in zip(panels, landscape.runs, strict=True):
        axes.set_title(shorten(run, 32), loc="center", y=1.03, pad=0)
    return figure, panels


def _draw_surface(axes: Any, view: View, scale: Scale, losses: Array, **style: Any) -> None:
    first, second = np.meshgrid(view.axis, view.axis)
    low, high = scale.heights(np.array([scale.low, scale.high]))
    if "cmap" in style:
        style |= {"vmin": low, "vmax": high}
    count = len(view.axis)
    mesh = {"rcount": count, "ccount": count, "linewidth": 0.25, "edgecolor": PAPER}
    axes.plot_surface(first, second, scale.heights(losses), antialiased=True, rasterized=True, **mesh, **style)
    axes.set_zlim(low, high)


def _mark_lowest(axes: Any, view: View, scale: Scale, losses: Array, colour: str, marker: str) -> None:
    """Mark the lowest place of a surface with a stem down to the floor."""
    first, second, loss = lowest_place(view, losses)
    floor, height = scale.heights(np.array([scale.low, loss]))
    axes.plot([first] * 2, [second] * 2, [floor, height], color=colour, linewidth=1.5, zorder=10)
    axes.plot([first], [second], [height], marker, color=colour, markeredgecolor=INK, zorder=11)


def _mark_model(axes: Any, scale: Scale) -> None:
    heights = scale.heights(np.array([scale.low, scale.high]))
    axes.plot([0, 0], [0, 0], heights, color=INK, linestyle=(0, (4, 2)), linewidth=1.4, zorder=12)


def _clear_walls(axes: Any) -> None:
    """Make the walls light: the surface is what counts."""
    for wall in (axes.xaxis, axes.yaxis, axes.zaxis):
        wall.set_pane_color((1.0, 1.0, 1.0, 0.0))
        wall.line.set_color(RULE)
        wall._axinfo["grid"].update(color=RULE, linewidth=0.6)
    axes.view_init(elev=28, azim=-58)


def _label_axes(axes: Any, view: View, scale: Scale) -> None:
    _clear_walls(axes)
    axes.set_xticks(*axis_ticks(view))
    axes.set_yticks(*axis_ticks(view))
    axes.set_zticks(scale.heights(np.array(scale.ticks)), [f"{tick:g}" for tick in scale.ticks])
    axes.set_zlabel("loss" + (" (log)" if scale.is_log else ""), labelpad=2)
    axes.tick_params(labelsize=9, pad=0)
    axes.set_box_aspect((1, 1, 0.85), zoom=1.02)


def _name_panels(figure: Figure, landscape: Landscape, view: View, scale: Scale) -> None:
    from matplotlib.cm import ScalarMappable

    rows = len(landscape.runs)
    top = 1 - 0.75 / figure.get_figheight()
    figure.subplots_adjust(left=0.045, right=0.895, bottom=0.01, top=top, wspace=0.0, hspace=0.0)
    for column, place in enumerate([*landscape.sites, MEAN]):
        figure.axes[column].set_title(wrap(place, 18), fontsize=11, loc="center", y=1.06, pad=2)
    for row, run in enumerate(landscape.runs):
        middle = top * (1 - (row + 0.5) / rows)
        figure.text(0.02, middle, wrap(run, 20), rotation=90, ha="center", va="center", fontweight="bold")
    bar_axes = figure.add_axes((0.91, 0.15, 0.012, 0.65))
    bar = figure.colorbar(ScalarMappable(scale.norm(), COLOUR_MAP), cax=bar_axes)
    finish_colour_bar(bar, scale, landscape)
    figure.suptitle(f"Loss around the selected model: {PLANES[view.name]}", fontsize=12.5, fontweight="bold", y=0.99)
