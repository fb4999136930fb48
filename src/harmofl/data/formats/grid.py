"""From the array as a volume is stored to the slices that are seen, and back.

A stored array is (columns, rows, slices), as NIfTI has it. Slices lie along its third axis, which is never moved nor
flipped; the two others are swapped and flipped so that every volume is seen from the same side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harmofl.data.formats.guards import times
from harmofl.data.scans import Geometry, Mask, Pixels, Scan, UnreadableError

Orientation = NDArray[np.float64]

SEEN_AS = {2: ("L", "P"), 1: ("L", "I"), 0: ("P", "I")}
"""Where columns and rows lead, by the body axis (0 left-right, 1 back-front, 2 feet-head) of the slices."""


def orientation_of(affine: NDArray[np.float64] | None) -> Orientation | None:
    """nibabel's transform from a stored array to the slices; None if the affine says nothing."""
    from nibabel.orientations import axcodes2ornt, io_orientation, ornt2axcodes, ornt_transform

    axis = slice_axis(affine)
    if axis is None:
        return None
    stored = io_orientation(affine)
    seen = (*SEEN_AS[axis], ornt2axcodes(stored)[2])
    return np.asarray(ornt_transform(stored, axcodes2ornt(seen)), dtype=np.float64)


def slice_axis(affine: NDArray[np.float64] | None) -> int | None:
    """The body axis that the slices of a stored array follow; None if the affine says nothing."""
    from nibabel.orientations import io_orientation

    return int(io_orientation(affine)[2, 0]) if is_valid(affine) else None


def is_valid(affine: NDArray[np.float64] | None) -> bool:
    """Whether three axes of finite length point in three different directions."""
    if affine is None or not np.isfinite(affine).all():
        return False
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    return bool((lengths > 1e-9).all() and abs(np.linalg.det(affine[:3, :3] / lengths)) > 1e-3)


def to_slices(stored: Pixels, orientation: Orientation | None) -> Pixels:
    """(S, C, H, W) from a stored array (columns, rows, slices, channels)."""
    return _moved(stored, orientation).transpose(2, 3, 1, 0)


def to_stored(mask: Mask, orientation: Orientation | None) -> Mask:
    """(columns, rows, slices) from a mask (S, H, W): undoes `to_slices`."""
    from nibabel.orientations import ornt_transform

    stored = mask.transpose(2, 1, 0)
    return stored if orientation is None else _moved(stored, ornt_transform(_unmoved(), orientation))


def stored_grid(scan: Scan) -> tuple[int, int, int]:
    """The size of the scan's stored array: columns, rows, slices."""
    if scan.geometry.kind == "picture":
        slices, _, height, width = scan.pixels.shape
        return width, height, slices
    columns, rows, slices = (*scan.geometry.stored_shape, 1)[:3]
    return columns, rows, slices


def on_the_same_grid(labels: Mask, scan: Scan) -> Mask:
    """(S, H, W) from labels (columns, rows, slices) that lie on the scan's stored voxels, one on each."""
    grid = stored_grid(scan)
    if labels.shape != grid:
        flat = labels.shape[2:] == grid[2:] == (1,)
        mask, image = (labels.shape[:2], grid[:2]) if flat else (labels.shape, grid)
        raise UnreadableError(f"the mask is {times(mask)}, the image {times(image)}")
    return to_slices(labels[..., None], scan.geometry.orientation)[:, 0]


def turned(labels: Mask, own: Geometry, scan: Scan) -> Mask:
    """Labels with their axes as the scan's stored array has them, judged by the two affines."""
    from nibabel.orientations import io_orientation, ornt_transform

    if own.orientation is None or scan.geometry.orientation is None:
        return labels
    return _moved(labels, ornt_transform(io_orientation(own.affine), io_orientation(scan.geometry.affine)))


def lies_turned(own: Geometry, shape: tuple[int, ...], scan: Scan) -> bool:
    """Whether labels lie on the scan's own voxels, only stored along other axes or from another end."""
    from nibabel.orientations import inv_ornt_aff, io_orientation, ornt_transform

    image = scan.geometry.affine
    if own.affine is None or image is None or own.orientation is None or scan.geometry.orientation is None:
        return False
    turn = ornt_transform(io_orientation(own.affine), io_orientation(image))
    if (turn == _unmoved()).all():
        return False
    after = own.affine @ inv_ornt_aff(turn, shape)
    half_a_voxel = 0.5 * np.linalg.norm(image[:3, :3], axis=0).min()
    axes_agree = np.allclose(after[:3, :3], image[:3, :3], atol=0.02 * half_a_voxel)
    return bool(axes_agree and np.allclose(after[:3, 3], image[:3, 3], atol=half_a_voxel))


def _moved(array: NDArray[Any], orientation: Orientation | None) -> NDArray[Any]:
    from nibabel.orientations import apply_orientation

    return array if orientation is None else np.asarray(apply_orientation(array, orientation))


def _unmoved() -> Orientation:
    return np.array([[0, 1], [1, 1], [2, 1]], dtype=np.float64)
