"""Figures of hospitals' surveys: intensities, spectra, and how well their images tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from harmofl.analysis.appearance import Probe
from harmofl.analysis.comparison import Comparison
from harmofl.labels import shorten
from harmofl.reporting.style import INK, MUTED, line_style, styled

if TYPE_CHECKING:
    # Imported where it is used: loading matplotlib takes longer than most commands.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (7.2, 4.2)
LONGEST_NAME = 24
MOST_IN_LEGEND = 12
LETTERS_IN_ROW = 90


def _figure() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    return figure, figure.subplots()


def _name_lines(axes: Axes) -> None:
    """Name the lines below the figure, as many in a row as their names have room for."""
    handles, names = axes.get_legend_handles_labels()
    figure = axes.get_figure(root=True)
    if figure is not None and len(names) <= MOST_IN_LEGEND:
        columns = max(1, min(len(names), LETTERS_IN_ROW // (max(map(len, names), default=0) + 6)))
        figure.legend(handles, names, fontsize=9, ncols=columns, loc="outside lower center")


@styled
def histograms(comparison: Comparison) -> Figure:
    """Draw how often each intensity occurs at every hospital."""
    figure, axes = _figure()
    shown = {site: survey.histogram for site, survey in comparison.surveys.items() if survey.histogram}
    for number, (site, shares) in enumerate(shown.items()):
        places = (np.arange(len(shares)) + 0.5) / len(shares)
        style = line_style(number) | {"marker": ""}
        axes.plot(places, 100 * np.array(shares), label=shorten(site, LONGEST_NAME), **style)
    axes.set(xlabel="intensity, as the network sees it", ylabel="% of pixels", xlim=(0, 1), title="Intensities")
    axes.set_ylim(bottom=0)
    _name_lines(axes)
    return figure


@styled
def spectra(comparison: Comparison) -> Figure:
    """Draw every hospital's mean amplitudes, compared with the mean over hospitals."""
    figure, axes = _figure()
    shown = {site: np.array(survey.spectrum) for site, survey in comparison.surveys.items() if survey.spectrum}
    mean = np.mean(list(shown.values()), axis=0) if shown else 0
    for number, (site, logarithms) in enumerate(shown.items()):
        rings = (np.arange(len(logarithms)) + 0.5) / len(logarithms) / 2
        axes.plot(rings, 10 ** (logarithms - mean), label=shorten(site, LONGEST_NAME), **line_style(number))
    axes.axhline(1, color=MUTED, linewidth=1)
    axes.set(xlabel="cycles per pixel: coarse to fine", ylabel="times the mean over hospitals", title="Mean spectra")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=8.5)
    _name_lines(axes)
    return figure


@styled
def probes(sites: Sequence[str], before: Probe, after: Probe) -> Figure:
    """Draw how often each hospital is guessed from its images, as they are and with the same mean."""
    figure, axes = _figure()
    places, height = np.arange(len(sites)), 0.38
    for offset, probe, words, number in ((-0.5, before, "as they are", 0), (0.5, after, "with the same mean", 1)):
        colour = line_style(number)["color"]
        axes.barh(places + offset * height, 100 * np.array(probe.per_site), height, label=words, color=colour)
    axes.axvline(100 * before.chance, color=INK, linewidth=1, linestyle="--", label="chance")
    axes.set_yticks(places, [shorten(site, LONGEST_NAME) for site in sites])
    axes.invert_yaxis()
    axes.set(
        xlim=(0, 100), xlabel="% of images whose hospital is guessed", title="How easily images reveal their hospital"
    )
    _name_lines(axes)
    return figure
