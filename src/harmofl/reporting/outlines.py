"""Lines around the classes of a mask: outside them, so that nothing thin is covered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harmofl.labels import shorten
from harmofl.reporting.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUTLINES = ("#f0e442", "#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#0072b2")
"""Okabe and Ito's colours, those first that stand out from both stained tissue and grey scans."""
WIDEST, NARROWEST, RIM = 0.9, 0.5, 0.5
"""Points: a line, and the dark rim around it that is seen on bright images too."""


def class_colours(num_classes: int) -> Iterator[tuple[int, str]]:
    """Each class but background with its colour."""
    return ((number, OUTLINES[(number - 1) % len(OUTLINES)]) for number in range(1, num_classes))


def draw_outlines(axes: Axes, mask: Tensor, num_classes: int, points: float) -> None:
    """Draw a line around every class but background. The mask (H, W) is shown `points` wide."""
    pixel = points / mask.shape[1]
    for number, colour in class_colours(num_classes):
        inside = (mask == number).numpy()
        if inside.any() and not inside.all():
            _draw_outline(axes, inside, colour, pixel)
    axes.set(xlim=(-0.5, mask.shape[1] - 0.5), ylim=(mask.shape[0] - 0.5, -0.5))


def _draw_outline(axes: Axes, inside: NDArray[np.bool_], colour: str, pixel: float) -> None:
    from scipy.ndimage import distance_transform_edt

    width = min(WIDEST, max(NARROWEST, 0.8 * pixel))  # within a gap of one pixel, if the pixels are large enough
    padded = np.pad(inside, 2, mode="edge")  # where the image cuts a structure it has no border
    distances = np.asarray(distance_transform_edt(~padded))
    rows, columns = (np.arange(-2, length + 2) for length in inside.shape)
    for points, line, shown in ((width / 2, width, colour), (width + RIM / 2, RIM, INK)):
        level = 0.5 + points / pixel  # a structure ends half a pixel from the middle of its last one
        if distances.max() > level:
            axes.contour(columns, rows, distances, levels=[level], colors=[shown], linewidths=line)


def name_outlines(figure: Figure, names: Sequence[str], **style: Any) -> None:
    """Name the colours of the classes below a figure."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=2.5) for _, colour in class_colours(len(names) + 1)]
    labels = [f"label {name}" if name.isdecimal() else shorten(name, 24) for name in names]
    figure.legend(handles, labels, loc="lower center", fontsize=9, **style)
