"""From the array as a volume is stored to the slices that are seen, and back.

A stored array is (columns, rows, slices), as NIfTI has it. Slices lie along its third axis, which is never moved nor
flipped; the two others are swapped and flipped so that every volume is seen from the same side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harmofl.data.formats.guards import describe_shape
from harmofl.data.scans import Mask, Pixels, Scan, UnreadableError

Orientation = NDArray[np.float64]

SEEN_AS = {2: ("L", "P"), 1: ("L", "I"), 0: ("P", "I")}
"""Where columns and rows lead, by the body axis (0 left-right, 1 back-front, 2 feet-head) of the slices."""

UNMOVED: Orientation = np.array([[0, 1], [1, 1], [2, 1]], dtype=np.float64)
"""The transform that leaves an array as it is."""


def orientation_of(affine: NDArray[np.float64] | None) -> Orientation | None:
    """nibabel's transform from a stored array to the slices; None if the affine says nothing."""
    axis = slice_axis(affine)
    if axis is None:
        return None
    from nibabel.orientations import axcodes2ornt, io_orientation, ornt2axcodes, ornt_transform

    stored = io_orientation(affine)
    seen = (*SEEN_AS[axis], ornt2axcodes(stored)[2])
    return np.asarray(ornt_transform(stored, axcodes2ornt(seen)), dtype=np.float64)


def slice_axis(affine: NDArray[np.float64] | None) -> int | None:
    """The body axis that the slices of a stored array follow; None if the affine says nothing."""
    if not is_valid(affine):  # pictures: they need no nibabel
        return None
    from nibabel.orientations import io_orientation

    return int(io_orientation(affine)[2, 0])


def is_valid(affine: NDArray[np.float64] | None) -> bool:
    """Whether three axes of finite length point in three different directions."""
    if affine is None or not np.isfinite(affine).all():
        return False
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    return bool((lengths > 1e-9).all() and abs(np.linalg.det(affine[:3, :3] / lengths)) > 1e-3)


def to_slices(stored: Pixels, orientation: Orientation | None) -> Pixels:
    """(S, C, H, W) from a stored array (columns, rows, slices, channels)."""
    return move_axes(stored, orientation).transpose(2, 3, 1, 0)


def to_stored(mask: Mask, orientation: Orientation | None) -> Mask:
    """(columns, rows, slices) from a mask (S, H, W): undoes `to_slices`."""
    stored = mask.transpose(2, 1, 0)
    if orientation is None:
        return stored
    from nibabel.orientations import ornt_transform

    return move_axes(stored, ornt_transform(UNMOVED, orientation))


def stored_grid(scan: Scan) -> tuple[int, int, int]:
    """The size of the scan's stored array: columns, rows, slices."""
    if scan.geometry.kind == "picture":
        slices, _, height, width = scan.pixels.shape
        return width, height, slices
    columns, rows, slices = (*scan.geometry.stored_shape, 1)[:3]
    return columns, rows, slices


def lay_on_grid(labels: Mask, scan: Scan) -> Mask:
    """(S, H, W) from labels (columns, rows, slices) that lie on the scan's stored voxels, one on each."""
    grid = stored_grid(scan)
    if labels.shape != grid:
        flat = labels.shape[2:] == grid[2:] == (1,)
        mask, image = (labels.shape[:2], grid[:2]) if flat else (labels.shape, grid)
        raise UnreadableError(f"the mask is {describe_shape(mask)}, the image {describe_shape(image)}")
    return to_slices(labels[..., None], scan.geometry.orientation)[:, 0]


def move_axes(array: NDArray[Any], orientation: Orientation | None) -> NDArray[Any]:
    """An array with its first three axes swapped and flipped."""
    if orientation is None:
        return array
    from nibabel.orientations import apply_orientation

    return np.asarray(apply_orientation(array, orientation))
