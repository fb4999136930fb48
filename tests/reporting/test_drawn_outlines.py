import io

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from harmofl.reporting.outlines import OUTLINES, draw_outlines
from harmofl.reporting.style import to_png

SIZE, DOTS = 24, 20
"""Pixels of an image's side, and dots of the picture for each."""


def outlined(mask: torch.Tensor) -> np.ndarray:
    """The picture (24 · 20, 24 · 20, 3) of a white image with the outlines of a mask on it."""
    figure = Figure(figsize=(4, 4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(np.ones((SIZE, SIZE, 3)))
    draw_outlines(axes, mask, 3, points=4 * 72)
    axes.axis("off")
    with Image.open(io.BytesIO(to_png(figure, dpi=SIZE * DOTS // 4))) as image:
        return np.asarray(image.convert("RGB")) / 255


@pytest.mark.parametrize("number", [1, 2])
def test_a_structure_one_pixel_wide_stays_visible_within_its_outline(number: int) -> None:
    mask = torch.zeros(SIZE, SIZE, dtype=torch.int64)
    mask[4:20, 10] = number
    shown = outlined(mask)
    inside = shown[4 * DOTS : 20 * DOTS, 10 * DOTS : 11 * DOTS]
    assert (inside > 0.98).mean() > 0.95  # white, as the image is; the rest is the edge of a line
    distances = np.abs(shown - to_rgb(OUTLINES[number - 1])).max(axis=2)
    assert (distances < 0.2).sum() > 2 * 16 * DOTS  # a line at both sides


def test_two_structures_one_pixel_apart_have_two_outlines() -> None:
    mask = torch.zeros(SIZE, SIZE, dtype=torch.int64)
    mask[4:20, 6:10], mask[4:20, 11:15] = 1, 1
    yellow = np.abs(outlined(mask) - to_rgb(OUTLINES[0])).max(axis=2) < 0.2
    across = yellow[12 * DOTS]
    assert np.count_nonzero(np.diff(across.astype(int)) == 1) == 4  # left and right of each


def test_a_mask_without_a_border_has_no_outline() -> None:
    for mask in (torch.zeros(SIZE, SIZE, dtype=torch.int64), torch.ones(SIZE, SIZE, dtype=torch.int64)):
        assert outlined(mask).min() == 1.0
