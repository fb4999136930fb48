"""Several scans of one patient as the channels of one: T2 and ADC, or phases of a contrast agent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harmofl.data.resampling import affine_of_slices, resample_onto
from harmofl.data.scans import Pixels, Scan, UnreadableError

TOLERANCE = 1e-3
"""Millimetres by which two grids may differ and still be the same."""


def join_channels(scans: Sequence[Scan]) -> Scan:
    """The first scan with those of the others as further channels, on the first one's voxels.

    Scans on other voxels are resampled where both say how they lie in the body.
    """
    if len(scans) == 1:
        return scans[0]
    first = scans[0]
    parts = [first.pixels, *(_on_voxels_of(first, other, number) for number, other in enumerate(scans[1:], 2))]
    if any(part.dtype != np.uint8 for part in parts):
        parts = [part.astype(np.float32) for part in parts]
    return Scan(np.concatenate(parts, axis=1), first.geometry, separate_channels=True)


def _on_voxels_of(first: Scan, other: Scan, number: int) -> Pixels:
    same_size = first.pixels.shape[0] == other.pixels.shape[0] and first.pixels.shape[2:] == other.pixels.shape[2:]
    placed = first.geometry.is_placed and other.geometry.is_placed
    if same_size and (not placed or np.allclose(affine_of_slices(first), affine_of_slices(other), atol=TOLERANCE)):
        return other.pixels
    if not placed:
        raise UnreadableError(
            f"its channel {number} has another size, and the files do not say how they lie in the body; save all "
            "channels on the same voxels"
        )
    return resample_onto(first, other)
