"""Pictures of what runs make of test images: every method's masks beside the truth, or classes and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from harmofl.analysis.cases import KINDS, SHOWN, Case, Gallery, Guess
from harmofl.labels import shorten, wrap
from harmofl.reporting.outlines import draw_outlines
from harmofl.reporting.sheets import (
    MARGIN,
    NAME_HEIGHT,
    SMALL_LETTER,
    WIDTH,
    Pixels,
    Sheet,
    label_width,
    lines_of,
    note,
    picture,
    short,
    show,
)
from harmofl.reporting.style import INK, MUTED, styled

if TYPE_CHECKING:
    # Imported where it is used: loading matplotlib takes longer than most commands.
    from matplotlib.figure import Figure

FOUND, FALSE_ALARM, MISSED, WRONG_CLASS = "#56b4e9", "#d55e00", "#14171b", "#7f379b"
"""Of different lightness, and darker than any faded image: they stay apart in grey and for colour-blind readers."""
NAMES = {FOUND: "found", FALSE_ALARM: "false alarm", MISSED: "missed", WRONG_CLASS: "found as another class"}
FADED = 0.22
"""What is left of an image's contrast behind a mask."""

GAP, TITLE, MOST_TILES, LABEL = 0.06, 0.2, 6, 1.2
CASE_GAP = 0.14
LONGEST_METHOD = 13


@styled
def segmentations(gallery: Gallery, cases: Sequence[Case], title: str) -> Figure:
    """Draw each case in a row, or two: the image, the truth, and what every method found and missed."""
    lines, columns = lines_of(2 + len(gallery.runs), MOST_TILES)
    tile = min(1.6, (WIDTH - LABEL - MARGIN - (columns - 1) * GAP) / columns)
    pitch = tile + TITLE + GAP
    top, height = 0.42, lines * pitch + NAME_HEIGHT / 2 + CASE_GAP
    sheet = Sheet(top + len(cases) * height + 0.3, LABEL + columns * (tile + GAP) - GAP + MARGIN)
    sheet.title(title)
    for number, case in enumerate(cases):
        _draw_case(sheet, gallery, case, top + number * height, tile, columns)
    several = len(gallery.classes) > 2
    _name_colours(sheet, [FOUND, FALSE_ALARM, MISSED, *([WRONG_CLASS] if several else [])])
    return sheet.figure


def _draw_case(sheet: Sheet, gallery: Gallery, case: Case, top: float, tile: float, columns: int) -> None:
    texts = (case.word, *wrap(case.place.site, 15).split("\n"), f"mean {100 * case.mean:.1f}")
    for line, words in enumerate(texts):
        weight, colour = ("bold", INK) if line == 0 else ("normal", MUTED)
        size = 10.5 if line == 0 else 8.5
        sheet.text(MARGIN, top + TITLE + 0.1 + 0.18 * line, words, fontsize=size, fontweight=weight, color=colour)
    image = picture(case.image, gallery.is_colour)
    for number, name in enumerate(("image", "truth", *case.masks)):
        line, column = divmod(number, columns)
        left, height = LABEL + column * (tile + GAP), top + line * (tile + TITLE + GAP)
        axes = sheet.tile(left, height + TITLE, tile)
        show(axes, mark_mask(image, case.masks[name], case.truth) if number > 1 else image)
        if name == "truth":
            draw_outlines(axes, case.truth, len(gallery.classes), 72 * tile)
        if name == "image":
            sheet.name_image(left, height + TITLE + tile, 2 * tile, case.place.name)
        score = f" {100 * case.scores[name]:.1f}" if number > 1 else ""
        sheet.text(left, height + TITLE / 2, f"{short_method(name)}{score}", fontsize=8.5)


def short_method(name: str) -> str:
    """Shorten a name to the room above a tile; its end, which tells two runs of a method apart, stays."""
    return shorten(name, LONGEST_METHOD)


def mark_mask(image: Pixels, mask: Tensor, truth: Tensor) -> Pixels:
    """Draw on a faded grey image (H, W, 3) what was found, a false alarm, missed, or taken for another class."""
    from matplotlib.colors import to_rgb

    predicted, true = mask.numpy(), truth.numpy()
    shown = np.repeat(1 - FADED * (1 - image.mean(axis=2, keepdims=True)), 3, axis=2)
    areas = {
        FOUND: (predicted == true) & (true > 0),
        FALSE_ALARM: (predicted > 0) & (true == 0),
        MISSED: (predicted == 0) & (true > 0),
        WRONG_CLASS: (predicted != true) & (predicted > 0) & (true > 0),
    }
    for colour, area in areas.items():
        shown[area] = to_rgb(colour)
    return shown


def _name_colours(sheet: Sheet, colours: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, edgecolor="none", label=NAMES[colour]) for colour in colours]
    words = {"loc": "lower left", "bbox_to_anchor": (LABEL / sheet.width - 0.012, 0.0), "ncols": len(handles)}
    sheet.figure.legend(handles=handles, fontsize=9, handlelength=1.2, **words)


@styled
def predictions(gallery: Gallery, guesses: Mapping[str, Mapping[str, Sequence[Guess]]]) -> Figure:
    """Draw the images of which each method (row) is surest and right, least sure, and surest and wrong."""
    left, block_gap, top = label_width(list(guesses)), 0.24, 0.75
    tile = (WIDTH - left - MARGIN - 2 * block_gap - 3 * (SHOWN - 1) * GAP) / (3 * SHOWN)
    pitch = tile + 0.9
    sheet = Sheet(top + len(guesses) * pitch, WIDTH)
    sheet.title("What the methods are sure of, and what they are not")
    for block, kind in enumerate(KINDS):
        start = left + block * (SHOWN * (tile + GAP) - GAP + block_gap)
        sheet.text(start, top - 0.15, kind, fontsize=10.5)
        for row, (method, kinds) in enumerate(guesses.items()):
            height = top + row * pitch
            if block == 0:
                sheet.text(left - 0.1, height + tile / 2, short(method), fontsize=9.5, ha="right")
            for place in range(SHOWN):
                guess = kinds[kind][place] if place < len(kinds[kind]) else None
                _draw_guess(sheet, gallery, guess, start + place * (tile + GAP), height, tile)
    return sheet.figure


def _draw_guess(sheet: Sheet, gallery: Gallery, guess: Guess | None, left: float, top: float, tile: float) -> None:
    axes = sheet.tile(left, top, tile)
    if guess is None:
        note(axes, "none")
        return
    show(axes, picture(guess.image, gallery.is_colour))
    classes, label = gallery.classes, guess.label
    most = int(tile / SMALL_LETTER)
    truth = "right" if label == guess.truth else f"truth: {shorten(classes[guess.truth], most - 7)}"
    verdict = f"{shorten(classes[label], most - 5)} {guess.probabilities[label]:.2f}"
    for line, (words, colour) in enumerate(((verdict, INK), (truth, INK), (shorten(guess.place.site, most), MUTED))):
        sheet.text(left, top + tile + 0.1 + 0.14 * line, words, fontsize=7.5, color=colour)
    sheet.name_image(left, top + tile + 0.42, tile, guess.place.name)
