"""Sheets of images: a figure whose parts are placed in inches from its top left corner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from harmofl.labels import shorten, width_of, wrap
from harmofl.reporting.style import INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.4
"""Inches, as of other pictures of images."""
MARGIN = 0.1
LETTER, LONGEST_NAME = 0.085, 18
"""Of a name beside a row: inches of a letter, and letters."""
SMALL_LETTER, NAME_HEIGHT = 0.062, 0.3
"""Of a name below an image: inches of a letter, and of two lines."""

Pixels = npt.NDArray[np.float64]


class Sheet:
    """A figure in which everything has its place."""

    def __init__(self, height: float, width: float = WIDTH) -> None:
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure: Figure = Figure(figsize=(width, height))

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes at a place."""
        bottom = self.height - top - height
        box = (left / self.width, bottom / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(box)

    def tile(self, left: float, top: float, size: float) -> Axes:
        """Square axes for an image, without anything around it."""
        axes = self.axes(left, top, size, size)
        axes.grid(visible=False)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        return axes

    def text(self, left: float, top: float, words: str, **style: Any) -> None:
        """Words at a place, in the middle of their line."""
        look = {"va": "center", "color": INK} | style
        self.figure.text(left / self.width, 1 - top / self.height, words, **look)

    def name_image(self, left: float, bottom: float, width: float, name: str) -> None:
        """The name of an image's file below it, in two lines at the most."""
        words = wrap(name, int(width / SMALL_LETTER))
        self.text(left, bottom + 0.03, words, fontsize=7.5, color=MUTED, va="top")

    def title(self, words: str) -> None:
        """The words above all."""
        self.text(MARGIN, 0.2, words, fontsize=12.5, fontweight="bold", ha="left")


def label_width(names: Sequence[str]) -> float:
    """Inches for the longest name and a gap."""
    return MARGIN + 0.1 + LETTER * max((width_of(short(name)) for name in names), default=0)


def short(name: str) -> str:
    """A name that has room beside a row."""
    return shorten(name, LONGEST_NAME)


def picture(image: Tensor, is_colour: bool) -> Pixels:
    """An image (C, H, W) as it is shown: its colours, or its middle channel in grey; clipped to [0, 1]."""
    shown = image if is_colour else image[image.shape[0] // 2].expand(3, *image.shape[1:])
    return np.asarray(shown.detach().cpu().double().clamp(0, 1).permute(1, 2, 0).numpy(), dtype=np.float64)


def show(axes: Axes, pixels: Pixels, **style: Any) -> Any:
    """Draw pixels as they are, none made up between them."""
    return axes.imshow(pixels, interpolation="nearest", aspect="auto", **style)


def note(axes: Axes, words: str) -> None:
    """Say why there is no image."""
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=MUTED, fontsize=9)


def lines_of(count: int, most: int) -> tuple[int, int]:
    """Lines, and places in each, for so many tiles: as few lines as can be, about equally long."""
    lines = math.ceil(count / most)
    return lines, math.ceil(count / lines)
