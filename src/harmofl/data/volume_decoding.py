"""From a volume's files to what the cache keeps of it: on the common grid, intensities in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from harmofl.data.preparation import Planes, scale_to_unit_range, widen
from harmofl.data.resampling import Gridded, affine_of_slices, to_common_grid
from harmofl.data.scans import Mask, Scan, UnreadableError
from harmofl.data.windows import pad_to_size
from harmofl.settings import DataSettings

GRID = ("grid_slices", "grid_rows", "grid_columns")
SPACING = ("mm_slices", "mm_rows", "mm_columns")
"""The facts of a volume on the common grid."""


def grid_volume(scan: Scan, data: DataSettings) -> Gridded:
    """A scan as the network meets it, (C, D, H, W) of 16 bits: intensities scaled, turned, resampled."""
    planes = widen(scale_to_unit_range(scan, data))
    gridded = to_common_grid(planes.swapaxes(0, 1), affine_of_slices(scan), data.spacing)
    return Gridded(np.rint(gridded.values).astype(np.uint16), gridded.affine)


def grid_mask(labels: Mask, scan: Scan, data: DataSettings) -> Mask:
    """The mask (S, H, W) of a scan on the same grid, (D, H, W)."""
    gridded = to_common_grid(labels[None], affine_of_slices(scan), data.spacing, labels=True)
    mask: Mask = gridded.values[0].astype(labels.dtype)
    return mask


def facts_of_grid(volume: Gridded) -> dict[str, float]:
    """The size and the spacing of a volume on the common grid, as the cache keeps them."""
    return dict(zip(GRID + SPACING, (*map(float, volume.values.shape[1:]), *volume.spacing), strict=True))


def fit_volume(volume: Planes, size: Sequence[int], resampled: bool) -> Planes:
    """A volume (C, D, H, W) of the network's size, whole, as a label is true of the whole only.

    On a common spacing it is cut or mirrored around its middle, so that lengths stay true; else it is scaled.
    """
    if volume.shape[1:] == tuple(size):
        return volume
    if not resampled:
        values = torch.from_numpy(volume.astype(np.float32))[None]
        scaled = F.interpolate(values, tuple(size), mode="trilinear", align_corners=False)[0]
        rounded: Planes = np.rint(scaled.numpy()).astype(volume.dtype)
        return rounded
    padded = pad_to_size(volume, size)
    corner = [(length - least) // 2 for length, least in zip(padded.shape[1:], size, strict=True)]
    place = tuple(slice(start, start + least) for start, least in zip(corner, size, strict=True))
    return np.ascontiguousarray(padded[(slice(None), *place)])


def check_is_volume(scan: Scan) -> None:
    """Refuse a single slice: it has no third dimension."""
    if len(scan.pixels) < 2:
        raise UnreadableError("one slice, not a volume (data.dimensions = 3); data.dimensions = 2 takes slices")
