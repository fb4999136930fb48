"""Sample images as a grid: a row per site, a block of columns per treatment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harmofl.labels import wrap
from harmofl.reporting.style import INK, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROWEST_BLOCK = 1.05
"""Inches for a block of columns: fewer have no room for the longest words of headings."""
WIDTH_OF_LETTER = 0.112
"""Inches for a letter of a heading."""


@styled
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
        (site, block): image_strip(images[block], gray, f"{site}, {block}")
        for site, images in rows.items()
        for block in images
    }
    widest = max(strip.shape[1] / strip.shape[0] for strip in strips.values())
    width = max(8.4, 1.2 + NARROWEST_BLOCK * len(blocks))
    block_width = (width - 1.2) / len(blocks)
    headings = [wrap(block, int(block_width / WIDTH_OF_LETTER), lines=2) for block in blocks]
    lines = 1 + max(heading.count("\n") for heading in headings)
    height = len(rows) * block_width / widest * 1.06 + 0.25 + 0.2 * lines + (0.4 if title else 0)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.04, hspace=0.02)
    figure = Figure(figsize=(width, height), layout=layout)
    all_axes = figure.subplots(len(rows), len(blocks), squeeze=False)
    for row, site in enumerate(rows):
        all_axes[row, 0].set_ylabel(wrap(site, 16, lines=3), rotation=0, ha="right", va="center", labelpad=8, color=INK)
        for column, block in enumerate(blocks):
            draw_strip(all_axes[row, column], strips.get((site, block)))
    for column, heading in enumerate(headings):
        all_axes[0, column].set_title(heading, fontsize=11.5, pad=6)
    if title:
        figure.suptitle(title, fontsize=12.5, fontweight="bold")
    return figure


def image_strip(images: Any, gray: bool, name: str) -> npt.NDArray[np.float64]:
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


def draw_strip(axes: Axes, strip: npt.NDArray[np.float64] | None) -> None:
    """Show a strip of images without axes; nothing where there is none."""
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if strip is not None:
        axes.imshow(strip)
