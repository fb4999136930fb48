"""Figures of the loss around trained models: contours, surfaces, and two sites' surfaces in one picture.

Runs stand side by side on one scale. Colours go from dark to light as the loss rises, also in grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harmofl.analysis.losses import Array
from harmofl.analysis.measured_terms import read_terms
from harmofl.analysis.results import Landscape, View
from harmofl.files import write_whole
from harmofl.reporting.drift_figures import drift_with_terms
from harmofl.reporting.style import COLOURS, INK, MARKERS, MUTED, PAPER, RULE, styled, to_png, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

COLOUR_MAP = "viridis"
LEVELS = 15
FINE = 61
"""Points along an axis of a drawn surface: a smooth one through those that were computed."""

WORDS = {
    "near": "two random filter-normalized directions",
    "wide": "the same directions, 8 × wider",
    "drift": "the plane of the sites' own paths",
}
AXES = {
    "near": "step along the first direction, in units of each filter's norm",
    "wide": "step along the first direction, in units of each filter's norm",
    "drift": "distance from the global model's weights",
}
LOWEST = "#d55e00"
TWO = tuple(zip(COLOURS[:2], MARKERS[:2], strict=True))
MEAN = "mean over sites"


@dataclass(frozen=True)
class Scale:
    """One scale of losses for all panels of a figure; logarithmic where they span more than a decade."""

    low: float
    high: float

    @classmethod
    def of(cls, losses: Array) -> Scale:
        """From the lowest to the highest finite loss."""
        finite = losses[np.isfinite(losses)]
        low, high = float(finite.min()), float(finite.max())
        return cls(low, high if high > low else low + 1.0)  # a flat one

    @property
    def is_log(self) -> bool:
        """Whether equal steps are equal ratios."""
        return self.low > 0 and self.high > 10 * self.low

    @property
    def levels(self) -> Array:
        """Where contours lie."""
        make = np.geomspace if self.is_log else np.linspace
        return np.asarray(make(self.low, self.high, LEVELS), dtype=np.float64)

    def norm(self) -> Normalize:
        """From losses to colours."""
        from matplotlib.colors import LogNorm, Normalize

        return LogNorm(self.low, self.high) if self.is_log else Normalize(self.low, self.high)

    def clipped(self, losses: Array) -> Array:
        """Losses within the scale; what is not finite counts as highest."""
        return np.clip(np.nan_to_num(losses, nan=self.high, posinf=self.high), self.low, self.high)

    def heights(self, losses: Array) -> Array:
        """What a surface shows: losses, or their logarithms."""
        return np.log10(self.clipped(losses)) if self.is_log else self.clipped(losses)


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
            _mark_lowest(axes, view, losses)
        panels[row, 0].set_ylabel(run, color=INK, fontweight="bold")
    for column, place in enumerate([*landscape.sites, MEAN]):
        panels[0, column].set_title(place, fontsize=11, loc="center", pad=6)
    _colour_bar(figure, shown, panels, scale, landscape)
    figure.suptitle(f"Loss around the selected model: {WORDS[view.name]}", fontsize=12.5, fontweight="bold")
    panels[-1, columns // 2].set_xlabel(AXES[view.name])
    _path_legend(figure)
    return figure


def _draw_contours(axes: Axes, view: View, scale: Scale, losses: Array) -> Any:
    axis, fine = _refined(view.axis, scale.heights(losses))
    values = scale.clipped(10**fine if scale.is_log else fine)
    shown = axes.contourf(axis, axis, values, levels=scale.levels, norm=scale.norm(), cmap=COLOUR_MAP, extend="neither")
    shown.set_rasterized(True)
    axes.contour(axis, axis, values, levels=scale.levels, colors=PAPER, linewidths=0.45, alpha=0.7)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xticks(*_axis_ticks(view), fontsize=9)
    axes.set_yticks(*_axis_ticks(view), fontsize=9)
    return shown


def _axis_ticks(view: View) -> tuple[list[float], list[str]]:
    """Three places, none at the edge, where the labels of neighbouring panels would meet."""
    ticks = [-view.span / 2, 0.0, view.span / 2]
    return ticks, [f"{tick:.2g}".replace("-", "−") for tick in ticks]


def _refined(axis: Array, values: Array) -> tuple[Array, Array]:
    """The same surface on a finer grid: a cubic spline through the computed points."""
    from scipy.interpolate import RectBivariateSpline

    fine = np.linspace(axis[0], axis[-1], FINE)
    return fine, np.asarray(RectBivariateSpline(axis, axis, values, kx=3, ky=3)(fine, fine))


def _draw_path(axes: Axes, path: Array, site: int) -> None:
    """Draw a site's path from the model; light with a dark rim, to be seen on every colour."""
    marker = MARKERS[site % len(MARKERS)]
    axes.plot(path[:, 0], path[:, 1], color=INK, linewidth=2.6, zorder=3, solid_capstyle="round")
    axes.plot(path[:, 0], path[:, 1], color=PAPER, linewidth=1.3, zorder=4, solid_capstyle="round")
    style: dict[str, Any] = {
        "color": PAPER,
        "markeredgecolor": INK,
        "markeredgewidth": 0.9,
        "markersize": 5.5,
        "clip_on": False,
    }
    axes.plot(*path[-1], marker=marker, zorder=5, **style)


def _mark_lowest(axes: Axes, view: View, losses: Array) -> None:
    row, column = np.unravel_index(int(np.nanargmin(losses)), losses.shape)
    axes.plot(0, 0, marker="+", color=INK, markersize=9, markeredgewidth=1.6, zorder=6)
    place = (view.axis[column], view.axis[row])
    for colour, size, width in ((PAPER, 8.5, 4.0), (LOWEST, 6.5, 2.0)):  # the light rim is for grey prints
        axes.plot(*place, marker="x", color=colour, markersize=size, markeredgewidth=width, zorder=6, clip_on=False)


def _path_legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    path: dict[str, Any] = {
        "color": MUTED,
        "linewidth": 1.6,
        "markerfacecolor": PAPER,
        "markeredgecolor": INK,
        "markersize": 5.5,
    }
    handles = [
        Line2D([], [], linestyle="none", marker="+", color=INK, markersize=9, markeredgewidth=1.6),
        Line2D([], [], marker="o", **path),
        Line2D([], [], linestyle="none", marker="x", color=LOWEST, markersize=6.5, markeredgewidth=2.0),
    ]
    words = ["global model", "a site's further local epochs, as seen in this plane", "lowest loss in this plane"]
    figure.legend(handles, words, loc="outside lower center", ncols=3, fontsize=10)


def _colour_bar(figure: Figure, shown: Any, panels: Any, scale: Scale, landscape: Landscape) -> None:
    bar = figure.colorbar(shown, ax=panels, shrink=0.8, aspect=28, pad=0.015, ticks=_ticks(scale))
    bar.ax.minorticks_off()
    bar.set_label(_loss_words(landscape, scale), color=MUTED)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in _ticks(scale)])
    bar.outline.set_visible(False)


def _loss_words(landscape: Landscape, scale: Scale) -> str:
    words = f"{landscape.loss_name} on training images" + (", log scale" if scale.is_log else "")
    return textwrap.fill(words, width=12 + 16 * len(landscape.runs), break_on_hyphens=False)  # a row is not very high


def _ticks(scale: Scale) -> list[float]:
    """A few round numbers within the scale."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    locator: Any = MaxNLocator(5)
    if scale.is_log:
        locator = LogLocator(subs=(1, 2, 5) if scale.high < 1000 * scale.low else (1,))
    found = locator.tick_values(scale.low, scale.high)
    return [float(tick) for tick in found if scale.low <= tick <= scale.high]


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
            _small_axes(axes)
    return _finish_grid(figure, landscape, view, scale)


@styled
def mean_surfaces(landscape: Landscape, view: View) -> Figure:
    """Draw the mean loss over sites as one large surface per run."""
    scale = Scale.of(view.mean)
    figure, panels = _row_of_surfaces(landscape)
    for axes, losses in zip(panels, view.mean, strict=True):
        _draw_surface(axes, view, scale, losses, cmap=COLOUR_MAP)
        _large_axes(axes, view, scale)
    figure.suptitle(f"Mean loss over sites: {WORDS[view.name]}", fontsize=12.5, fontweight="bold")
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
            _mark_optimum(axes, view, scale, view.losses[run, site], colour, marker)
        _mark_model(axes, scale)
        _large_axes(axes, view, scale)
    handles = [
        Line2D([], [], marker=marker, color=colour, markeredgecolor=INK, linewidth=6, alpha=0.8)
        for colour, marker in TWO
    ]
    handles.append(Line2D([], [], color=INK, linestyle=(0, (4, 2)), linewidth=1.4))
    names = [*(f"{landscape.sites[site]} (mark: its lowest loss)" for site in pair), "global model"]
    figure.legend(handles, names, loc="lower center", ncols=3)
    figure.suptitle(f"Two sites' losses: {WORDS[view.name]}", fontsize=12.5, fontweight="bold")
    return figure


def _row_of_surfaces(landscape: Landscape) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    count = len(landscape.runs)
    figure = Figure(figsize=(3.7 * count + 0.4, 4.1))
    panels = [figure.add_subplot(1, count, number + 1, projection="3d") for number in range(count)]
    figure.subplots_adjust(left=0.0, right=0.96, bottom=0.07, top=0.85, wspace=0.04)
    for axes, run in zip(panels, landscape.runs, strict=True):
        axes.set_title(run, loc="center", y=1.03, pad=0)
    return figure, panels


def _draw_surface(axes: Any, view: View, scale: Scale, losses: Array, **style: Any) -> None:
    axis, heights = _refined(view.axis, scale.heights(losses))
    first, second = np.meshgrid(axis, axis)
    low, high = scale.heights(np.array([scale.low, scale.high]))
    heights = np.clip(heights, low, high)
    if "cmap" in style:
        style |= {"vmin": low, "vmax": high}
    axes.plot_surface(
        first,
        second,
        heights,
        rcount=FINE,
        ccount=FINE,
        linewidth=0,
        antialiased="alpha" in style,
        rasterized=True,
        **style,
    )
    axes.set_zlim(low, high)


def _mark_optimum(axes: Any, view: View, scale: Scale, losses: Array, colour: str, marker: str) -> None:
    """Mark the lowest place of a surface with a stem down to the floor."""
    row, column = np.unravel_index(int(np.nanargmin(losses)), losses.shape)
    height = float(scale.heights(losses)[row, column])
    floor = float(scale.heights(np.array([scale.low]))[0])
    place = [view.axis[column]] * 2, [view.axis[row]] * 2
    axes.plot(*place, [floor, height], color=colour, linewidth=1.5, zorder=10)
    axes.plot(*([value[0]] for value in place), [height], marker, color=colour, markeredgecolor=INK, zorder=11)


def _mark_model(axes: Any, scale: Scale) -> None:
    heights = scale.heights(np.array([scale.low, scale.high]))
    axes.plot([0, 0], [0, 0], heights, color=INK, linestyle=(0, (4, 2)), linewidth=1.4, zorder=12)


def _bare(axes: Any) -> None:
    """Light walls: the surface is what counts."""
    for wall in (axes.xaxis, axes.yaxis, axes.zaxis):
        wall.set_pane_color((1.0, 1.0, 1.0, 0.0))
        wall.line.set_color(RULE)
        wall._axinfo["grid"].update(color=RULE, linewidth=0.6)
    axes.view_init(elev=28, azim=-58)


def _small_axes(axes: Any) -> None:
    _bare(axes)
    axes.set_axis_off()
    axes.set_box_aspect((1, 1, 0.8), zoom=1.22)


def _large_axes(axes: Any, view: View, scale: Scale) -> None:
    _bare(axes)
    axes.set_xticks(*_axis_ticks(view))
    axes.set_yticks(*_axis_ticks(view))
    heights = scale.heights(np.array(_ticks(scale)))
    axes.set_zticks(heights, [f"{tick:g}" for tick in _ticks(scale)])
    axes.set_zlabel("loss" + (" (log)" if scale.is_log else ""), labelpad=2)
    axes.tick_params(labelsize=9, pad=0)
    axes.set_box_aspect((1, 1, 0.85), zoom=1.02)


def _finish_grid(figure: Figure, landscape: Landscape, view: View, scale: Scale) -> Figure:
    from matplotlib.cm import ScalarMappable

    rows = len(landscape.runs)
    top = 1 - 0.75 / figure.get_figheight()
    figure.subplots_adjust(left=0.045, right=0.895, bottom=0.01, top=top, wspace=0.0, hspace=0.0)
    for column, place in enumerate([*landscape.sites, MEAN]):
        figure.axes[column].set_title(place, fontsize=11, loc="center", y=1.06, pad=2)
    for row, run in enumerate(landscape.runs):
        middle = top * (1 - (row + 0.5) / rows)
        figure.text(0.02, middle, run, rotation=90, ha="center", va="center", fontweight="bold")
    bar_axes = figure.add_axes((0.91, 0.15, 0.012, 0.65))
    bar = figure.colorbar(ScalarMappable(scale.norm(), COLOUR_MAP), cax=bar_axes, ticks=_ticks(scale))
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels([f"{tick:g}" for tick in _ticks(scale)])
    bar.set_label(_loss_words(landscape, scale), color=MUTED)
    bar.outline.set_visible(False)
    figure.suptitle(f"Loss around the selected model: {WORDS[view.name]}", fontsize=12.5, fontweight="bold", y=0.99)
    return figure


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
            written += _write(draw(landscape, view), out / f"{name}-{view.name}")
    if terms := read_terms(out):
        written += _write(drift_with_terms(terms), out / "drift-terms")
    return written


def _write(figure: Figure, path: Path) -> list[Path]:
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    write_whole(png, to_png(figure))
    write_whole(svg, to_svg(figure))
    return [png, svg]
