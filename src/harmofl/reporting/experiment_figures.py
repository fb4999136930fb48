"""The figures of an experiment, from its records: in the style of those of single runs, and as files."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from harmofl.labels import shorten
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
from harmofl.reporting.figures import Curve, draw_site_dots, test_curve, values_per_round
from harmofl.reporting.style import MUTED, RULE, line_style, styled
from harmofl.reporting.tables import REFERENCES, MethodScores, methods_of, sample_std, sites_of
from harmofl.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS_PER_ROW = 3
MEAN = "mean of all"
MARKS = ("*", "†", "‡")
WIDTH_OF_NOTES = 62
"""Letters in a line of a footnote."""
ORDER_OF_WORDS = {"none": -2.0, "dc": -1.0, "full": math.inf}
"""Where the bands that are words stand among those that are numbers."""

Setting = float | str


@dataclass(frozen=True)
class Point:
    """One line of an experiment's table as a point of a curve."""

    row: str
    axis: str | None
    """None: `setting` is the name of a variation."""
    setting: Setting
    scores: MethodScores

    @property
    def scored_on(self) -> str:
        """Which images its scores are of."""
        return self.scores.runs[0].scored_on


@styled
def score_curves(points: Sequence[Point]) -> Figure:
    """Draw the score along a setting: a band of one std over seeds, and bars of one standard error over sites."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    settings = sorted({point.setting for point in points}, key=_place)
    rows = list(dict.fromkeys(point.row for point in points))
    for index, row in enumerate(rows):
        shift = 0.05 * (index - (len(rows) - 1) / 2)  # bars of two rows would hide one another
        own = {settings.index(point.setting): point.scores for point in points if point.row == row}
        _draw_row(axes, row, own, index, shift)
    name, metric = words_for(points[0].axis), points[0].scores.score.words
    axes.set_title(f"{points[0].scored_on.capitalize()} {metric} against {name}")
    axes.set_xticks(range(len(settings)), [shorten(str(value), 14) for value in settings])
    over_seeds = spread_label([point.scores for point in points], "band").strip(" ()")
    spreads = "; ".join(text for text in (over_seeds, "bars: ± standard error over sites") if text)
    axes.set_xlabel(f"{name}, not to scale\n({spreads})")
    axes.set_ylabel(mean_label(points[0].scores.score))
    axes.grid(axis="x", visible=False)
    name_lines(figure, axes)
    return figure


def words_for(axis: str | None) -> str:
    """A setting's name as words."""
    return (axis or "variation").rpartition(".")[2].replace("_", " ")


def _place(value: Setting) -> float:
    return ORDER_OF_WORDS.get(value, 0.0) if isinstance(value, str) else float(value)


def _draw_row(axes: Axes, row: str, points: Mapping[int, MethodScores], index: int, shift: float) -> None:
    places = sorted(points)
    means = [points[place].average for place in places]
    over_sites = [_standard_error_over_sites(points[place]) for place in places]
    over_seeds = [sample_std(list(points[place].averages.values())) or 0.0 for place in places]
    shifted = [place + shift for place in places]
    style = line_style(index)
    axes.plot(shifted, means, label=row, zorder=3, **style)
    axes.errorbar(shifted, means, yerr=over_sites, fmt="none", ecolor=style["color"], elinewidth=1.2, capsize=3)
    if any(over_seeds):
        low, high = ([mean + sign * std for mean, std in zip(means, over_seeds, strict=True)] for sign in (-1, 1))
        axes.fill_between(shifted, low, high, color=style["color"], alpha=0.16, linewidth=0)


def _standard_error_over_sites(method: MethodScores) -> float:
    means = [mean for site in sites_of(method.runs) if not math.isnan(mean := method.mean_at(site))]
    return (sample_std(means) or 0.0) / math.sqrt(len(means)) if means else 0.0


@styled
def drift_by_site(runs: Sequence[FinishedRun]) -> Figure:
    """Draw the drift Γ of each site and round, averaged over seeds: a panel per method, all on one scale."""
    from matplotlib.figure import Figure

    curves = {method.label: _drift_curves(method) for method in methods_of(runs)}
    columns = 2 if len(curves) == 4 else min(PANELS_PER_ROW, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(1.2 + 2.8 * columns, 1.1 + 2.3 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    sites = list(dict.fromkeys(site for own in curves.values() for site in own))
    for axes, (label, own) in zip(panels, curves.items(), strict=False):
        _draw_panel(axes, label, own, sites)
    for axes in panels[len(curves) :]:
        axes.remove()
    for axes in panels[max(0, len(curves) - columns) : len(curves)]:
        axes.tick_params(axis="x", labelbottom=True)
        axes.set_xlabel("round")
    is_wide = spans_a_decade([value for own in curves.values() for curve in own.values() for value in curve.values()])
    if is_wide:
        use_log_axis(panels[0])
    figure.supylabel(f"Γ{', log scale' if is_wide else ''}", color=MUTED, fontsize=11)
    legend_below(figure, max(panels, key=lambda axes: len(axes.lines)))
    return figure


def _draw_panel(axes: Axes, title: str, curves: Mapping[str, Curve], sites: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    for site, curve in curves.items():
        index, step = sites.index(site), max(1, len(curve) // 4)
        style = line_style(index) | {"linewidth": 1.5, "markersize": 4.5}
        markers = (index * step // len(sites), step)  # side by side, not on top of one another
        axes.plot(list(curve), list(curve.values()), label=site, markevery=markers, **style)
    axes.set_title(shorten(title, 28), fontsize=11, pad=6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.grid(axis="x", visible=False)


def _drift_curves(method: MethodScores) -> dict[str, Curve]:
    """Each site's drift by round, averaged over the seeds in which it answered."""
    values_of: dict[str, dict[int, list[float]]] = {}
    for run in method.runs:
        for number, values in values_per_round(run, "train", "drift").items():
            for site, value in values.items():
                values_of.setdefault(site, {}).setdefault(number, []).append(value)
    return {
        site: {number: statistics.fmean(rounds[number]) for number in sorted(rounds)}
        for site, rounds in sorted(values_of.items())
    }


@styled
def score_by_bytes(runs: Sequence[FinishedRun]) -> Figure:
    """Draw the test score against what a site has sent and received up to then, averaged over seeds.

    References take no part: nothing of theirs travels, or all images do.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for index, method in enumerate(methods_of(runs)):
        curves = [_bytes_curve(run) for run in method.runs]
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        if rounds and not method.is_reference:
            sent, scores = ([statistics.fmean(curve[n][part] for curve in curves) for n in rounds] for part in (0, 1))
            axes.plot(sent, scores, label=method.label, markevery=max(1, len(rounds) // 8), **line_style(index))
    ignore_first_rounds(axes)
    axes.set_title(f"{runs[0].scored_on.capitalize()} {runs[0].score.words} by megabytes sent")
    axes.set_xlabel("MB that a site has sent and received")
    axes.set_ylabel(mean_label(runs[0].score))
    axes.grid(axis="x", visible=False)
    name_lines(figure, axes)
    return figure


def _bytes_curve(run: FinishedRun) -> dict[int, tuple[float, float]]:
    """Per round: megabytes up to then, per site, and the score."""
    up, down = (values_per_round(run, "train", name) for name in ("bytes_up", "bytes_down"))
    rounds = sorted(up)
    before = values_per_round(run, "measure", "bytes_up").get(0, {})  # what was measured before the first round
    each = [statistics.fmean(up[n][site] + down[n].get(site, 0) for site in up[n]) / 1e6 for n in rounds]
    start = statistics.fmean(before.values()) / 1e6 if before else 0.0
    sent = dict(zip(rounds, (start + total for total in accumulate(each)), strict=True))
    return {number: (sent[number], score) for number, score in test_curve(run).items() if number in sent}


@styled
def scores_by_variation(points: Sequence[Point]) -> Figure:
    """Draw the average score of each row of the table under each variation, with bars of one std over seeds.

    Unlike a curve's settings, variations have names only, in the order of the plan.
    """
    from matplotlib.figure import Figure

    variations = list(dict.fromkeys(str(point.setting) for point in points))
    rows = list(dict.fromkeys(point.row for point in points))
    places = lanes(len(rows), two_share=False)
    figure = Figure(figsize=(6.8, 1.6 + 0.55 * len(variations)), layout="constrained")
    axes = figure.add_subplot()
    for index, row in enumerate(rows):
        own = [point for point in points if point.row == row]
        heights = [variations.index(str(point.setting)) + places[index] for point in own]
        averages = [point.scores.average for point in own]
        spreads = [sample_std(list(point.scores.averages.values())) or 0.0 for point in own]
        style = line_style(index) | {"markersize": 7.5, "linestyle": "none"}
        axes.errorbar(averages, heights, xerr=spreads, fmt="none", ecolor=style["color"], elinewidth=1.6, zorder=2)
        axes.plot(averages, heights, label=row, zorder=3, **style)
    axes.set_title(f"Average {points[0].scored_on} {points[0].scores.score.words}")
    axes.set_xlabel(mean_label(points[0].scores.score) + spread_label([point.scores for point in points], "bars"))
    rows_down(axes, variations)
    legend_below(figure, axes)
    return figure


@styled
def unseen_scores(runs: Sequence[FinishedRun]) -> Figure:
    """Draw each method's score at each hospital that took no part, and the mean over them.

    A method that is not scored in the plain way carries a mark, which a footnote explains.
    """
    from matplotlib.figure import Figure

    methods, sites = methods_of(runs), sites_of(runs)
    rows = [*sites, MEAN]
    footnotes = _footnotes(methods)
    figure = Figure(figsize=(6.8, 1.9 + len(rows) * max(0.42, 0.16 * len(methods))), layout="constrained")
    axes = figure.add_subplot()
    axes.axhspan(len(sites) - 0.5, len(rows) - 0.5, color=RULE, alpha=0.4, linewidth=0)
    places = lanes(len(methods), two_share=False)  # two on one line would hide equal scores
    for index, method in enumerate(methods):
        mark = next((mark for mark, (labels, _) in footnotes.items() if method.label in labels), "")
        marked = replace(method, label=f"{method.label}{mark}")
        _draw_unseen(axes, marked, sites, places[index], line_style(index) | {"markersize": 7.5})
    axes.set_title(f"Test {runs[0].score.words} at a hospital that took no part")
    axes.set_xlabel("\n".join([runs[0].score.unit + spread_label(methods, "bars"), *_note_lines(footnotes)]))
    rows_down(axes, rows)
    legend_below(figure, axes)
    return figure


def _draw_unseen(axes: Axes, method: MethodScores, sites: Sequence[str], lane: float, style: dict[str, Any]) -> None:
    """Draw a method's dots at the sites and, in the row below them, its mean."""
    draw_site_dots(axes, method, sites, lane, style)
    place, spread = [len(sites) + lane], sample_std(list(method.averages.values())) or 0.0
    if spread:
        axes.errorbar([method.average], place, xerr=[spread], fmt="none", ecolor=style["color"], elinewidth=1.6)
    axes.plot([method.average], place, zorder=3, **(style | {"linestyle": "none"}))


Footnotes = Mapping[str, tuple[Sequence[str], str]]


def _note_lines(footnotes: Footnotes) -> list[str]:
    notes = [f"{mark} {', '.join(labels)}: {note}" for mark, (labels, note) in footnotes.items()]
    return [line for note in notes for line in textwrap.wrap(note, WIDTH_OF_NOTES)]


def _footnotes(methods: Sequence[MethodScores]) -> Footnotes:
    """The notes on unseen hospitals and the methods that they belong to, by their marks."""
    labels: dict[str, list[str]] = {}
    for method in methods:
        scores = [score for run in method.runs for score in (run.summary.get("unseen") or {}).values()]
        for note in dict.fromkeys(score["note"] for score in scores if score.get("note")):
            labels.setdefault(note, []).append(method.label)
    return {mark: (names, note) for mark, (note, names) in zip(MARKS, labels.items(), strict=False)}


def has_drift(runs: Sequence[FinishedRun]) -> bool:
    """Whether any record holds a drift."""
    return any("drift" in record for run in runs for record in run.records)


def has_bytes(runs: Sequence[FinishedRun]) -> bool:
    """Whether any record of a competing method holds its traffic and its score."""
    return any(_bytes_curve(run) for run in runs if run.method not in REFERENCES)
