"""Figures, from the folders of finished runs: one look for all of them.

Every function returns a matplotlib `Figure` and leaves pyplot and the global settings alone. Methods differ
in colour (Okabe and Ito's palette, safe for colour-blind readers) and also in line style and marker, for
grey prints.
"""

from __future__ import annotations

import functools
import io
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
import numpy.typing as npt

from harmofl.reporting.tables import MethodScores, methods_of, sample_std, sites_of
from harmofl.runs.finished import FinishedRun

if TYPE_CHECKING:
    # Imported where it is used: loading matplotlib takes longer than most commands.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Nothing else has exactly these colours: the page looks for them in an SVG to follow its light or dark theme.
INK, MUTED, RULE, PAPER = "#1c2127", "#5d6671", "#d9dde2", "#fffffe"

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", INK, "#e69f00", "#56b4e9")
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "h")

_MOST_NAMED_ENDS, _LONGEST_NAMED_END = 10, 22
"""Lines, and letters of a name, up to which names stand at the ends of lines."""

_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "figure.facecolor": PAPER,
    "font.family": "sans-serif",
    "font.size": 11,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "legend.columnspacing": 1.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.labelcolor": INK,
    "lines.linewidth": 2.0,
    "lines.markersize": 6,
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",
    "svg.hashsalt": "harmofl",  # the same records give the same bytes
    "text.color": INK,
    "text.parse_math": False,  # a site may have a $ in its name
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
}

_Arguments = ParamSpec("_Arguments")
_Curve = dict[int, float]


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def _styled(draw: Callable[_Arguments, Figure]) -> Callable[_Arguments, Figure]:
    """Draw in the one style, then put matplotlib's settings back."""

    @functools.wraps(draw)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Figure:
        with _style():
            return draw(*args, **kwargs)

    return wrapper


def _line_style(index: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _LINES[index % len(_LINES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.8,
    }


@_styled
def convergence(runs: Sequence[FinishedRun]) -> Figure:
    """Draw the test score after each round: the mean over sites, with a band of one std over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    methods = methods_of(runs)
    for index, method in enumerate(methods):
        curves = [_test_curve(run) for run in method.runs]
        _draw_curves(axes, curves, index, method.label)
        if rings_selected_rounds(methods):
            _ring_selected_round(axes, method, curves, index)
    _look_past_the_start(axes)
    _finish(figure, axes, methods, f"Test {runs[0].metric_name} by round", "mean over sites, %")
    return figure


@_styled
def drift(runs: Sequence[FinishedRun]) -> Figure:
    """Draw the drift Γ of each round, averaged over the sites that answered."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    methods = methods_of(runs)
    curves = {method.label: [_drift_curve(run) for run in method.runs] for method in methods}
    for index, method in enumerate(methods):
        _draw_curves(axes, curves[method.label], index, method.label)
    values = [value for group in curves.values() for curve in group for value in curve.values()]
    is_wide = _spans_a_decade(values)
    if is_wide:
        _use_log_axis(axes)
    scale = ", log scale" if is_wide else ""
    _finish(figure, axes, methods, "Drift of the sites by round", f"Γ, mean over sites{scale}")
    return figure


def _test_curve(run: FinishedRun) -> _Curve:
    """Average the test scores of each round; one that lacks a site is left out, or the mean would jump."""
    rounds = _values_per_round(run, "test", "metric")
    expected = set(run.scores)
    complete = {number: values for number, values in rounds.items() if expected <= values.keys()}
    return {number: _mean_percent(values[site] for site in expected) for number, values in complete.items()}


def _mean_percent(scores: Iterable[float]) -> float:
    return 100 * statistics.fmean(scores)


def _drift_curve(run: FinishedRun) -> _Curve:
    rounds = _values_per_round(run, "train", "drift")
    return {number: statistics.fmean(values.values()) for number, values in rounds.items()}


def _values_per_round(run: FinishedRun, phase: str, name: str) -> dict[int, dict[str, float]]:
    rounds: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for record in run.records:
        value = record.get(name)
        if record["phase"] != phase or record["site"] == "server" or "error" in record or value is None:
            continue
        if math.isfinite(value):
            rounds[record["round"]][record["site"]] = value
    return rounds


def _draw_curves(axes: Axes, curves: Sequence[_Curve], index: int, label: str) -> None:
    """Draw the mean over seeds, of the rounds that every seed has."""
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not rounds:
        return
    values = np.array([[curve[number] for number in rounds] for curve in curves])
    mean = values.mean(axis=0)
    style = _line_style(index)
    axes.plot(rounds, mean, label=label, markevery=max(1, len(rounds) // 8), **style)
    if len(curves) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(rounds, mean - spread, mean + spread, color=style["color"], alpha=0.16, linewidth=0)


def _look_past_the_start(axes: Axes) -> None:
    """Let the first tenth of the rounds leave the picture below, where they would press all others together."""
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


def rings_selected_rounds(methods: Sequence[MethodScores]) -> bool:
    """Whether convergence shows which round was selected: with one seed and few methods."""
    return len(methods) <= 4 and all(len(method.runs) == 1 for method in methods)


def _ring_selected_round(axes: Axes, method: MethodScores, curves: Sequence[_Curve], index: int) -> None:
    selected = method.runs[0].summary.get("best_round")
    if selected in curves[0]:
        colour = _line_style(index)["color"]
        axes.plot([selected], [curves[0][selected]], "o", markersize=13, fillstyle="none", color=colour)


def _spread_label(methods: Sequence[MethodScores], mark: str) -> str:
    return f" ({mark}: ± std over seeds)" if any(len(method.runs) > 1 for method in methods) else ""


def _spans_a_decade(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > 10 * min(positive)


def _use_log_axis(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log", nonpositive="mask")
    low, high = axes.get_ylim()
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _finish(figure: Figure, axes: Axes, methods: Sequence[MethodScores], title: str, quantity: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title)
    axes.set_xlabel("round" + _spread_label(methods, "band"))
    axes.set_ylabel(quantity)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="x", visible=False)
    if axes.lines:
        _name_lines(figure, axes)
    else:
        note = "not in the records of these runs"
        axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", color=MUTED)


def _name_lines(figure: Figure, axes: Axes) -> None:
    """Write each line's name at its end, or all in a legend where that would be too much."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > _MOST_NAMED_ENDS or max(map(len, labels)) > _LONGEST_NAMED_END:
        _legend_below(figure, axes)
        return
    lines: Sequence[Any] = handles
    ends = [(line.get_xdata()[-1], line.get_ydata()[-1]) for line in lines]
    axes.get_ylim()  # settles the limits, on which the next line depends
    to_fraction = axes.transScale + axes.transLimits
    heights = _apart([float(to_fraction.transform(end)[1]) for end in ends], gap=0.068)
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


def _apart(heights: Sequence[float], gap: float) -> list[float]:
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


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    points_per_entry = 60 + 7 * max(map(len, labels))
    fitting = max(1, int(figure.get_figwidth() * 72 // points_per_entry))
    rows = math.ceil(len(labels) / fitting)
    columns = math.ceil(len(labels) / rows)  # rows of about equal length
    figure.set_figheight(figure.get_figheight() + 0.23 * max(0, rows - 2))  # the axes keep their size
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


@_styled
def per_site_scores(runs: Sequence[FinishedRun]) -> Figure:
    """Draw each method's test score at each site, with bars of one std over seeds."""
    from matplotlib.figure import Figure

    methods, sites = methods_of(runs), sites_of(runs)
    lanes = _lanes(len(methods))
    height = 1.7 + len(sites) * max(0.42, 0.16 * len(methods))
    figure = Figure(figsize=(6.8, height), layout="constrained")
    axes = figure.add_subplot()
    for row, site in enumerate(sites):
        scores = [method.mean_at(site) for method in methods]
        if len(methods) == 2:  # the gap itself is what one looks for
            axes.plot(scores, [row, row], color=RULE, linewidth=6, solid_capstyle="round", zorder=1)
    for index, method in enumerate(methods):
        # Of two equal scores on one line, both stay visible.
        style = _line_style(index) | {"markersize": 10 if len(methods) == 2 and index == 0 else 7.5}
        _draw_site_dots(axes, method, sites, lanes[index], style)
    axes.set_title(f"Test {runs[0].metric_name} at each site")
    axes.set_xlabel("%" + _spread_label(methods, "bars"))
    axes.set_yticks(range(len(sites)), sites)
    axes.set_ylim(len(sites) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    _legend_below(figure, axes)
    return figure


def _lanes(num_methods: int, two_share: bool = True) -> list[float]:
    """Spread the methods of a site over its row so that close scores stay apart; two may share one line."""
    width = 0.0 if num_methods == 2 and two_share else 0.6 * (1 - 1 / num_methods)
    return [float(lane) for lane in np.linspace(-width / 2, width / 2, num_methods)]


def _draw_site_dots(axes: Axes, method: MethodScores, sites: Sequence[str], lane: float, style: dict[str, Any]) -> None:
    means = [method.mean_at(site) for site in sites]
    spreads = [sample_std(method.at(site)) or 0.0 for site in sites]
    rows = [row + lane for row in range(len(sites))]
    if len(method.runs) > 1:
        axes.errorbar(means, rows, xerr=spreads, fmt="none", ecolor=style["color"], elinewidth=1.6, zorder=2)
    axes.plot(means, rows, label=method.label, zorder=3, **(style | {"linestyle": "none"}))


@_styled
def image_grid(rows: Mapping[str, Mapping[str, Any]], *, gray: bool = False, title: str = "") -> Figure:
    """Draw sample images, a row per site and a block of columns per treatment.

    rows: {site: {"before": images, "after": images}}, each (n, C, H, W) in about [0, 1]; blocks are shown
          under the names they have.
    gray: show the middle channel only (MRI slices with their neighbours as channels).
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    blocks = list(dict.fromkeys(block for images in rows.values() for block in images))
    if not blocks:
        raise ValueError("image_grid needs at least one site with images")
    strips = {
        (site, block): _strip(images[block], gray, f"{site}, {block}")
        for site, images in rows.items()
        for block in images
    }
    widest = max(strip.shape[1] / strip.shape[0] for strip in strips.values())
    width = 8.4
    height = len(rows) * (width - 1.2) / (len(blocks) * widest) * 1.06 + 0.45 + (0.4 if title else 0)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.04, hspace=0.02)
    figure = Figure(figsize=(width, height), layout=layout)
    all_axes = figure.subplots(len(rows), len(blocks), squeeze=False)
    for row, site in enumerate(rows):
        all_axes[row, 0].set_ylabel(site, rotation=0, ha="right", va="center", labelpad=8, color=INK)
        for column, block in enumerate(blocks):
            _draw_strip(all_axes[row, column], strips.get((site, block)))
    for column, block in enumerate(blocks):
        all_axes[0, column].set_title(block, fontsize=11.5, pad=6)
    if title:
        figure.suptitle(title, fontsize=12.5, fontweight="bold")
    return figure


def _strip(images: Any, gray: bool, name: str) -> npt.NDArray[np.float64]:
    """Lay images side by side in one RGBA image, with transparent gaps."""
    if hasattr(images, "detach"):  # a torch tensor, perhaps on a GPU; torch itself is not needed here
        images = images.detach().cpu()
    pixels = np.nan_to_num(np.asarray(images, dtype=np.float64))
    if pixels.ndim != 4 or 0 in pixels.shape:
        raise ValueError(f"images of {name} should have shape (n, C, H, W), found {pixels.shape}")
    channels = pixels.shape[1]
    if gray or channels == 1:
        pixels = np.repeat(pixels[:, channels // 2, None], 3, axis=1)
    elif channels != 3:
        raise ValueError(f"images of {name} have {channels} channels: colour needs 3, or set gray=True")
    count, _, height, width = pixels.shape
    gap = max(1, round(width * 0.05))
    strip = np.zeros((height, count * (width + gap) - gap, 4))
    for index, image in enumerate(np.clip(pixels, 0.0, 1.0)):
        left = index * (width + gap)
        strip[:, left : left + width, :3] = image.transpose(1, 2, 0)
        strip[:, left : left + width, 3] = 1.0
    return strip


def _draw_strip(axes: Axes, strip: npt.NDArray[np.float64] | None) -> None:
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if strip is not None:
        axes.imshow(strip)


def to_png(figure: Figure, dpi: int = 160) -> bytes:
    """Render as PNG."""
    return _render(figure, "png", dpi)


def to_svg(figure: Figure, dpi: int = 200) -> str:
    """Render as SVG whose text stays text; dpi is that of the photographs in it."""
    return _render(figure, "svg", dpi).decode("utf-8")


def _render(figure: Figure, file_format: str, dpi: int) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {}
    with _style():
        figure.savefig(buffer, format=file_format, dpi=dpi, metadata=metadata)
    return buffer.getvalue()
