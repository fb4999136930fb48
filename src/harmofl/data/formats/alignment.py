"""Whether a mask lies on its image's voxels, judged by their two affines.

A mask is turned only where both affines describe the same grid. Between two NIfTI files of one size that do not, the
voxels count, with a remark: both are stored arrays, and many tools lose the affine. With a DICOM image there is no
common order of storing, so that nothing is left to go by.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harmofl.data.formats.grid import UNMOVED, Orientation, is_valid, move_axes, stored_grid
from harmofl.data.formats.guards import describe_shape
from harmofl.data.scans import Geometry, Mask, Note, Scan, UnreadableError

MaskGrid = Literal["auto", "voxels", "refuse"]
"""What becomes of a mask on another grid than its image: the setting `data.mask_grid`."""

TOLERANCE = 0.5
"""Voxels by which two affines may disagree at any corner and still describe the same grid."""
TURNED = "it is stored along other axes than its image, and was turned onto it"
BY_VOXELS = "taken voxel by voxel, which may be wrong: look at the contact sheet of `harmofl data check`"
ADVICE = (
    "save it with the affine of its image, or as a DICOM segmentation; if its voxels are stored in the same order as "
    "the image's, data.mask_grid = 'voxels' takes them so"
)


class OtherGridError(UnreadableError):
    """A mask that does not lie on its image's voxels, as far as its file says."""


def align(labels: Mask, own: Geometry, scan: Scan, mask_grid: MaskGrid = "auto") -> tuple[Mask, tuple[Note, ...]]:
    """Bring labels (columns, rows, slices) onto the scan's stored array, with what its owner should know about it.

    Labels of another size are returned as they are. `OtherGridError` if they should not be used.
    """
    image = scan.geometry
    if image.kind == "picture" or _are_plain_pictures(own, image, labels):
        return labels, ()
    axes = axes_onto(own, image, labels.shape)
    if axes is not None:
        is_turned = not (axes == UNMOVED).all()
        return move_axes(labels, axes), (Note("mask", TURNED),) if is_turned else ()
    if labels.shape != stored_grid(scan):
        return labels, ()
    words = "; ".join(_differences(own, image))
    if mask_grid == "refuse" or (mask_grid == "auto" and image.is_placed and "dicom" in (own.kind, image.kind)):
        raise OtherGridError(f"it is not on the grid of its image: {words}. What to do: {ADVICE}")
    note = f"it is not on the grid of its image: {words}; {BY_VOXELS}"
    return labels, (Note("grid" if mask_grid == "auto" else "mask", note),)


def axes_onto(own: Geometry, image: Geometry, shape: tuple[int, ...]) -> Orientation | None:
    """The swaps and flips that lay an array on the image's voxels; None unless both affines describe the same grid."""
    from nibabel.orientations import inv_ornt_aff, io_orientation

    if own.affine is None or image.affine is None or not (is_valid(own.affine) and is_valid(image.affine)):
        return None
    if "dicom" in (own.kind, image.kind) and not (own.is_placed and image.is_placed):
        return None
    to_image = np.linalg.inv(image.affine) @ own.affine
    axes = np.asarray(io_orientation(to_image), dtype=np.float64)
    sizes = [int(shape[list(axes[:, 0]).index(axis)]) for axis in range(3)]
    corners = np.array([(*corner, 1.0) for corner in product(*((0, size - 1) for size in sizes))]).T
    error = np.abs(to_image @ inv_ornt_aff(axes, shape) @ corners - corners)[:3]
    return axes if error.max() <= TOLERANCE else None


def _are_plain_pictures(own: Geometry, image: Geometry, labels: Mask) -> bool:
    """Whether both are DICOM, which fixes rows and columns, and nothing but those can be wrong."""
    both = own.kind == image.kind == "dicom"
    return both and not own.is_placed and (not image.is_placed or labels.shape[2:] in ((), (1,)))


def _differences(own: Geometry, image: Geometry) -> Iterator[str]:
    """What tells the two grids apart, in words."""
    if not own.is_placed:
        yield "its file does not say where it lies"
    elif _is_default(own.affine):
        yield "its affine is a default one, which does not say where it lies"
    if not image.is_placed:
        yield "the image's file does not say where it lies"
    if own.is_placed and image.is_placed and own.affine is not None and image.affine is not None:
        yield from _between(own.affine, image.affine)


def _between(own: NDArray[np.float64], image: NDArray[np.float64]) -> Iterator[str]:
    from nibabel.orientations import aff2axcodes

    axes = ["".join(aff2axcodes(affine)) for affine in (own, image)]
    if axes[0] != axes[1]:
        yield f"its axes lead to {axes[0]}, the image's to {axes[1]}"
    sizes = [np.linalg.norm(affine[:3, :3], axis=0) for affine in (own, image)]
    if not np.allclose(sizes[0], sizes[1], rtol=1e-2):
        yield f"its voxels measure {_in_mm(sizes[0])}, the image's {_in_mm(sizes[1])}"
    elif axes[0] == axes[1] and not np.allclose(own[:3, :3], image[:3, :3], atol=1e-2 * sizes[1].min()):
        yield "its axes are tilted against the image's"
    yield f"its first voxel lies {np.linalg.norm(own[:3, 3] - image[:3, 3]):.3g} mm from the image's"


def _in_mm(sizes: NDArray[np.float64]) -> str:
    return f"{describe_shape([f'{size:.3g}' for size in sizes])} mm"


def _is_default(affine: NDArray[np.float64] | None) -> bool:
    """Whether it is what libraries write if they are told nothing: straight axes from the origin."""
    return affine is not None and np.allclose(affine, np.diag(np.diag(affine)))
