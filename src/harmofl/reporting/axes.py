"""What several figures do with their axes: scales, names of lines and rows, legends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmofl.labels import readable, shorten_all, width_of, wrap
from harmofl.reporting.style import INK, MUTED
from harmofl.reporting.tables import MethodScores
from harmofl.tasks.scores import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED_ENDS, LONGEST_NAMED_END = 10, 22
"""Lines, and letters of a name, up to which names stand at the ends of lines."""
LONGEST_IN_LEGEND, LONGEST_ROW = 36, 24


def ignore_first_rounds(axes: Axes) -> None:
    """Cut off the first tenth of the rounds at the bottom where it would compress all later ones."""
    curves = [np.asarray(line.get_ydata(), dtype=np.float64).tolist() for line in axes.lines]
    later = [value for curve in curves for value in curve[math.ceil(len(curve) / 10) :]]
    if not later or max(map(len, curves)) < 10:
        return
    low, high = min(later), max(max(curve) for curve in curves)
    bottom = low - 0.15 * (high - low)
    if min(min(curve) for curve in curves) < bottom:
        axes.set_ylim(bottom=bottom)
        words = "the first rounds lie below"
        axes.text(0.99, 0.03, words, transform=axes.transAxes, color=MUTED, fontsize=9.5, ha="right")


def mean_label(score: Score) -> str:
    """Name an axis of mean scores."""
    return f"mean over sites, {score.unit}" if score.unit else "mean over sites"


def spread_label(methods: Sequence[MethodScores], mark: str) -> str:
    """Say what a band or a bar shows, where there are several seeds."""
    return f" ({mark}: ± std over seeds)" if any(len(method.runs) > 1 for method in methods) else ""


def spans_a_decade(values: Sequence[float]) -> bool:
    """Whether values are better seen on a logarithmic scale."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > 10 * min(positive)


def use_log_axis(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log", nonpositive="mask")
    low, high = axes.get_ylim()
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def name_lines(figure: Figure, axes: Axes) -> None:
    """Write each line's name at its end, or all in a legend where that would be too much."""
    handles, names = axes.get_legend_handles_labels()
    labels = [readable(name) for name in names]
    if len(labels) > MOST_NAMED_ENDS or max(map(width_of, labels)) > LONGEST_NAMED_END:
        legend_below(figure, axes)
        return
    lines: Sequence[Any] = handles
    ends = [(line.get_xdata()[-1], line.get_ydata()[-1]) for line in lines]
    axes.get_ylim()  # settles the limits, on which the next line depends
    to_fraction = axes.transScale + axes.transLimits
    heights = apart([float(to_fraction.transform(end)[1]) for end in ends], gap=0.068)
    for line, label, end, height in zip(lines, labels, ends, heights, strict=True):
        leader = {"arrowstyle": "-", "color": line.get_color(), "linewidth": 1, "relpos": (0, 0.5), "shrinkB": 0}
        axes.annotate(
            label,
            end,
            (1.05, height),
            textcoords="axes fraction",
            va="center",
            arrowprops=leader,
            annotation_clip=False,
        )


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights apart, in their order, until neighbours have the gap; a group's middle stays, if it fits."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    groups: list[list[int]] = []

    def middle(group: list[int]) -> float:
        half = gap * (len(group) - 1) / 2
        return max(half, min(1 - half, statistics.fmean(heights[index] for index in group)))

    for index in order:
        groups.append([index])
        while len(groups) > 1:
            lower, upper = groups[-2:]
            if middle(upper) - middle(lower) >= gap * (len(lower) + len(upper)) / 2:
                break
            groups[-2:] = [lower + upper]
    moved = list(heights)
    for group in groups:
        for place, index in enumerate(group):
            moved[index] = middle(group) + gap * (place - (len(group) - 1) / 2)
    return moved


def legend_below(figure: Figure, axes: Axes) -> None:
    """Name the lines below the figure, in rows of about equal length."""
    handles, names = axes.get_legend_handles_labels()
    labels = shorten_all(names, LONGEST_IN_LEGEND)
    points_per_entry = 60 + 7 * max(map(width_of, labels))
    fitting = max(1, int(figure.get_figwidth() * 72 // points_per_entry))
    rows = math.ceil(len(labels) / fitting)
    columns = math.ceil(len(labels) / rows)
    figure.set_figheight(figure.get_figheight() + 0.23 * max(0, rows - 2))  # the axes keep their size
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def lanes(num_methods: int, two_share: bool = True) -> list[float]:
    """Spread the methods of a site over its row so that close scores stay apart; two may share one line."""
    width = 0.0 if num_methods == 2 and two_share else 0.6 * (1 - 1 / num_methods)
    return [float(lane) for lane in np.linspace(-width / 2, width / 2, num_methods)]


def rows_down(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows from the top down, without an axis of their own."""
    axes.set_yticks(range(len(names)), [wrap(name, LONGEST_ROW) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
