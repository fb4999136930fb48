"""A site's sample as a picture: the image, and for segmentation the truth and what the model finds beside it."""

from __future__ import annotations

import io

import numpy as np
from torch import Tensor

from harmofl.reporting.case_figures import mark_mask
from harmofl.reporting.sheets import Pixels, picture
from harmofl.runs.live_samples import LiveSample

LEAST_HEIGHT, GAP = 160, 6
"""Pixels of a picture, and between two."""


def caption(sample: LiveSample) -> str:
    """What is seen."""
    of = f"{sample.site}, after round {sample.round}"
    if isinstance(sample.found, str):
        return f"{of}: {sample.found} found, {sample.truth} in truth"
    marks = "what the model finds (blue), misses (black) and makes up (orange)"
    return f"{of}: an image for validation, its true mask, and {marks}"


def draw_sample(sample: LiveSample) -> bytes:
    """A PNG, enlarged by a whole factor so that pixels stay pixels."""
    from PIL import Image

    image = picture(sample.image, is_colour=sample.image.shape[0] == 3)
    tiles = [image]
    if isinstance(sample.truth, Tensor) and isinstance(sample.found, Tensor):
        tiles += [mark_mask(image, sample.truth, sample.truth), mark_mask(image, sample.found, sample.truth)]
    factor = max(1, -(-LEAST_HEIGHT // image.shape[0]))
    pixels = _side_by_side([tile.repeat(factor, axis=0).repeat(factor, axis=1) for tile in tiles])
    content = io.BytesIO()
    Image.fromarray((255 * pixels).round().astype(np.uint8)).save(content, "PNG")
    return content.getvalue()


def _side_by_side(tiles: list[Pixels]) -> Pixels:
    gap = np.ones((tiles[0].shape[0], GAP, 3))
    return np.concatenate([part for tile in tiles for part in (gap, tile)][1:], axis=1)
