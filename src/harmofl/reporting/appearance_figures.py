"""Pictures of how hospitals' images look: samples, amplitude normalization before and after, and their statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from harmofl.analysis.appearance import FAINTEST, log_amplitudes, ring_means
from harmofl.analysis.hospitals import BEFORE, Chosen, Embedding, Harmonization, Hospitals, Look, harmonize
from harmofl.labels import shorten
from harmofl.reporting.outlines import draw_outlines
from harmofl.reporting.sheets import (
    MARGIN,
    NAME_HEIGHT,
    SMALL_LETTER,
    WIDTH,
    Sheet,
    label_width,
    lines_of,
    note,
    picture,
    short,
    show,
)
from harmofl.reporting.style import INK, MUTED, RULE, line_style, styled

if TYPE_CHECKING:
    # Imported where it is used: loading matplotlib takes longer than most commands.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "viridis"
"""Of spectra: from dark to light, also in grey."""
GAP, BLOCK_GAP, HEADING = 0.05, 0.22, 0.85
PROFILE_HEIGHT, MOST_RINGS = 1.75, 16
RATIOS, FINE_RATIOS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10), (0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.7)
"""Places of labels."""
MOST_COLUMNS, MOST_NAMES = 6, 4
"""Sites side by side, and names in a line of a legend."""


def in_words(name: str) -> str:
    """Say what was done to images."""
    return "as they are" if name == BEFORE else f"band {name}"


def percent(part: float) -> str:
    """A share in whole percent; one below 1 is never shown as 100 %."""
    return "> 99 %" if 0.995 <= part < 1 else f"{100 * part:.0f} %"


def subject(hospitals: Hospitals) -> str:
    """What the images are: the task's title or, for images of one's own, their folder's name."""
    folder = hospitals.settings.data.folder
    return Path(folder).name if folder and hospitals.task.phantom is None else hospitals.task.title


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


# --- before and after ----------------------------------------------------------------------------------------------


@styled
def amplitude_sheet(hospitals: Hospitals, harmonization: Harmonization, looks: Sequence[Look]) -> Figure:
    """Draw an image of every site as it is and harmonized, its spectra, and the amplitude that all sites share."""
    names = [BEFORE, *harmonization.layers]
    left = label_width(hospitals.sites)
    gaps = 2 * (len(names) - 1) * GAP + BLOCK_GAP
    tile = (WIDTH - left - MARGIN - gaps) / (2 * len(names))
    top_of_profile = HEADING + len(looks) * (tile + GAP) + 0.55
    sheet = Sheet(top_of_profile + PROFILE_HEIGHT + 0.6)
    sheet.title(f"Amplitude normalization: {subject(hospitals)}")
    starts = [left, left + len(names) * (tile + GAP) - GAP + BLOCK_GAP]
    _name_columns(sheet, starts, tile, names)
    images = [_before_and_after(look.example.image, harmonization) for look in looks]
    scale = _scale(images, harmonization)
    for row, (look, treated) in enumerate(zip(looks, images, strict=True)):
        top = HEADING + row * (tile + GAP)
        sheet.text(left - 0.1, top + tile / 2 - 0.08, short(look.site), ha="right", fontsize=9.5)
        label = shorten(look.example.name, int((left - 0.15) / SMALL_LETTER))
        sheet.text(left - 0.1, top + tile / 2 + 0.08, label, ha="right", fontsize=7.5, color=MUTED)
        for column, image in enumerate(treated):
            shift = column * (tile + GAP)
            show(sheet.tile(starts[0] + shift, top, tile), picture(image, hospitals.is_colour))
            show(sheet.tile(starts[1] + shift, top, tile), _centre_spectrum(log_amplitudes(image[None])[0]), **scale)
    _draw_profiles(sheet, harmonization, top_of_profile)
    _draw_shared(sheet, harmonization, top_of_profile, scale)
    return sheet.figure


def _before_and_after(image: Tensor, harmonization: Harmonization) -> list[Tensor]:
    return [image, *(harmonize(image[None], layer)[0].cpu() for layer in harmonization.layers.values())]


def _name_columns(sheet: Sheet, starts: Sequence[float], tile: float, names: Sequence[str]) -> None:
    for start, block in zip(starts, ("image", "its amplitudes, log scale"), strict=True):
        sheet.text(start, HEADING - 0.34, block, fontsize=10.5)
        for column, name in enumerate(names):
            middle = start + column * (tile + GAP) + tile / 2
            words = "as it is" if name == BEFORE else in_words(name)
            sheet.text(middle, HEADING - 0.12, words, fontsize=9.5, color=MUTED, ha="center")


def whole_spectrum(half: Tensor, harmonization: Harmonization) -> Tensor:
    """The decimal logarithm of all frequencies' amplitudes per pixel, from the half that is kept."""
    height, width = half.shape[-2], _width(harmonization)
    whole = torch.fft.fft2(torch.fft.irfft2(half.double(), s=(height, width))).real
    logarithms: Tensor = (whole / (height * width)).clamp_min(FAINTEST).log10()
    return logarithms


def _width(harmonization: Harmonization) -> int:
    return int(harmonization.shared.shape[-2])  # images are squares


def _centre_spectrum(spectrum: Tensor) -> Any:
    """The mean over channels, with the zero frequency in the middle."""
    return torch.fft.fftshift(spectrum.mean(dim=0)).numpy()


def _scale(images: Sequence[Sequence[Tensor]], harmonization: Harmonization) -> dict[str, Any]:
    """Choose one colour scale for all spectra; the faintest two percent share its dark end."""
    spectra = [log_amplitudes(image[None])[0].mean(dim=0) for treated in images for image in treated]
    values = torch.stack([*spectra, whole_spectrum(harmonization.shared, harmonization).mean(dim=0)])
    return {"cmap": COLOURS, "vmin": float(np.quantile(values.numpy(), 0.02)), "vmax": float(values.max())}


def _draw_profiles(sheet: Sheet, harmonization: Harmonization, top: float) -> None:
    """Draw each site's mean amplitude relative to the shared one: what full harmonization removes."""
    axes = sheet.axes(0.75, top, 3.6, PROFILE_HEIGHT)
    rings = min(MOST_RINGS, _width(harmonization) // 2)
    frequencies = (np.arange(rings) + 0.5) / (2 * rings)
    axes.axhline(1, color=INK, linewidth=1.6)
    for index, (site, own) in enumerate(harmonization.amplitudes.items()):
        style = line_style(index) | {"markersize": 4.5, "linewidth": 1.4}
        at_zero, *around = relative_amplitudes(own, harmonization, rings)
        axes.plot([-0.02], [at_zero], **style | {"markersize": 6.5})
        axes.plot(frequencies, around, label=shorten(site, 14), markevery=2, **style)
    axes.axvline(0, color=RULE, linewidth=1)
    _use_ratio_axis(axes)
    axes.set_xticks([-0.02, 0.1, 0.2, 0.3, 0.4, 0.5], ["0", "0.1", "0.2", "0.3", "0.4", "0.5"])
    axes.grid(axis="x", visible=False)
    axes.tick_params(labelsize=9)
    axes.set_xlabel("frequency, cycles per pixel", fontsize=9.5)
    axes.set_title("Each site's mean amplitude ÷ the shared one", fontsize=10.5, pad=7)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8.5, handlelength=2.2)


def _use_ratio_axis(axes: Axes) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = axes.get_ylim()
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(RATIOS if high > 2 * low else FINE_RATIOS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def relative_amplitudes(own: Tensor, harmonization: Harmonization, rings: int) -> list[float]:
    """A site's amplitude relative to the shared one: at the zero frequency, then in rings around it."""
    difference = (whole_spectrum(own, harmonization) - whole_spectrum(harmonization.shared, harmonization)).mean(dim=0)
    logarithms = torch.cat([difference[:1, 0], ring_means(difference, rings)])
    return [float(value) for value in 10**logarithms]


def _draw_shared(sheet: Sheet, harmonization: Harmonization, top: float, scale: Mapping[str, Any]) -> None:
    size = PROFILE_HEIGHT - 0.15
    left = WIDTH - size - 0.75
    axes = sheet.tile(left, top, size)
    shown = show(axes, _centre_spectrum(whole_spectrum(harmonization.shared, harmonization)), **scale)
    axes.set_title("The shared amplitude", fontsize=10.5, pad=7)
    bar = sheet.figure.colorbar(shown, cax=sheet.axes(left + size + 0.1, top, 0.11, size))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8.5)
    bar.ax.grid(visible=False)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{10**value:.2g}")
    sheet.text(left, top + size + 0.14, "zero frequency in the middle", fontsize=8.5, color=MUTED)


# --- statistics ----------------------------------------------------------------------------------------------------


@styled
def embedding_panels(sites: Sequence[str], embedding: Embedding) -> Figure:
    """Draw every image as a point: in the plane of the images as they are, and in one of their own below."""
    columns, left, top, gap = len(embedding.common), 0.95, 1.0, 0.32
    size = (WIDTH - left - MARGIN - (columns - 1) * gap) / columns
    below = top + size + 0.62
    sheet = Sheet(below + size + 1.0)
    sheet.title("What an image's low-level statistics reveal about its hospital")
    chance = next(iter(embedding.probes.values())).chance
    guess = f"in parentheses: how often a linear probe guesses the hospital; chance is {percent(chance)}"
    sheet.text(MARGIN, 0.45, guess, fontsize=9.5, color=MUTED)
    for column, name in enumerate(embedding.common):
        place = left + column * (size + gap)
        upper, lower = (sheet.axes(place, height, size, size) for height in (top, below))
        _draw_points(upper, embedding.sites, embedding.common[name], sites)
        _draw_points(lower, embedding.sites, embedding.own[name], sites)
        upper.set(**_frame(torch.cat(list(embedding.common.values()))))
        upper.tick_params(labelleft=column == 0)
        upper.set_title(
            f"{_capital(in_words(name))} ({percent(embedding.probes[name].accuracy)})", fontsize=11.5, pad=8
        )
        lower.set(**_frame(embedding.own[name]))
        shares = " + ".join(f"{100 * share:.0f}" for share in embedding.shares[name])
        lower.set_xlabel(f"{shares} % of the variance", fontsize=9)
    for height, words in ((top, "plane of the images as they are"), (below, "plane of its own")):
        sheet.text(0.28, height + size / 2, words, rotation=90, ha="center", fontsize=9.5)
    handles, labels = lower.get_legend_handles_labels()
    columns = lines_of(len(labels), MOST_NAMES)[1]
    sheet.figure.legend(handles, labels, loc="lower center", ncols=columns, fontsize=9.5)
    return sheet.figure


def _draw_points(axes: Axes, numbers: Tensor, places: Tensor, sites: Sequence[str]) -> None:
    """Draw every image as a point, and each site's mean as a large mark."""
    for index, site in enumerate(sites):
        style = line_style(index) | {"linestyle": "none"}
        own = places[numbers == index]
        faint = style | {"markersize": 3.2, "markeredgewidth": 0, "alpha": 0.4}
        axes.plot(own[:, 0], own[:, 1], rasterized=True, zorder=2, **faint)
        axes.plot(*own.mean(dim=0)[:, None], label=short(site), zorder=4, **style | {"markersize": 9})
    axes.tick_params(labelsize=8.5)


def _frame(places: Tensor) -> dict[str, tuple[float, float]]:
    """Choose limits that hold almost all points: a few distant ones would compress all others."""
    low, high = places.quantile(0.003, dim=0), places.quantile(0.997, dim=0)
    margin = 0.06 * (high - low).clamp_min(1e-3)
    (left, bottom), (right, top) = (low - margin).tolist(), (high + margin).tolist()
    return {"xlim": (left, right), "ylim": (bottom, top)}


# --- samples -------------------------------------------------------------------------------------------------------


@styled
def samples_sheet(hospitals: Hospitals, looks: Sequence[Look]) -> Figure:
    """Draw sites side by side: an image of each class, or an image above the same one with its mask outlined."""
    is_classification = hospitals.task.kind == "classification"
    rows = list(looks[0].samples) if is_classification else ["image", "truth"]
    left = label_width(rows)
    lines, columns = lines_of(len(looks), MOST_COLUMNS)
    tile = min(1.75, (WIDTH - left - MARGIN - (columns - 1) * GAP) / columns)
    pitch = tile + (NAME_HEIGHT if is_classification else GAP)
    block = len(rows) * pitch + 0.34 + (0 if is_classification else NAME_HEIGHT)
    sheet = Sheet(0.42 + lines * block + 0.02, left + columns * (tile + GAP) - GAP + MARGIN)
    sheet.title(_capital(subject(hospitals)))
    for number, look in enumerate(looks):
        line, column = divmod(number, columns)
        place, top = left + column * (tile + GAP), 0.42 + line * block
        sheet.text(place + tile / 2, top + 0.16, short(look.site), fontsize=9.5, ha="center")
        for row, name in enumerate(rows):
            height = top + 0.32 + row * pitch
            axes = sheet.tile(place, height, tile)
            sample = look.samples[name] if is_classification else look.example
            _draw_sample(axes, hospitals, sample, 72 * tile if name == "truth" and not is_classification else None)
            if sample is not None and name != "image":  # the name of both stands below the truth
                sheet.name_image(place, height + tile, tile, sample.name)
            if column == 0:
                sheet.text(left - 0.1, height + tile / 2, short(name), ha="right", fontsize=9.5)
    return sheet.figure


def _draw_sample(axes: Axes, hospitals: Hospitals, sample: Chosen | None, points: float | None) -> None:
    """Show an image; with its truth outlined if it is so many points wide."""
    if sample is None:
        note(axes, "none")
        return
    show(axes, picture(sample.image, hospitals.is_colour))
    if points is not None:
        draw_outlines(axes, sample.target, len(hospitals.classes), points)
