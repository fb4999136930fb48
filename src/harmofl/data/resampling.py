"""Volumes on a common grid, by MONAI's `Orientation` and `Spacing`, and predictions back on a scan's own voxels.

On the common grid slices lead to the head, rows to the back and columns to the patient's left, whichever way a volume
was stored. The same voxels are met in training and in prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from harmofl.data.formats.grid import is_valid
from harmofl.data.scans import Geometry, Mask, Pixels, Scan, UnreadableError

Affine = NDArray[np.float64]

AXES = "SPL"
"""Where slices, rows and columns of the common grid lead: superior, posterior, left."""
LABELS = (("L", "R"), ("P", "A"), ("I", "S"))
UNPLACED: Affine = np.array([[0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=np.float64)
"""The affine of a volume that does not say how it lies: taken as if it lay on the common grid already, at 1 mm."""
SLICES_AT_ONCE = 8
MOST_VOXELS = 2**29
"""Of a volume after resampling, channels included."""


@dataclass(frozen=True)
class Gridded:
    """A volume on the common grid."""

    values: NDArray[Any]
    """(C, D, H, W)."""
    affine: Affine
    """From voxels (slice, row, column) to millimetres."""

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between slices, rows and columns."""
        depth, height, width = np.linalg.norm(self.affine[:3, :3], axis=0).tolist()
        return depth, height, width


def affine_of_slices(scan: Scan) -> Affine:
    """From the voxels (slice, row, column) of a scan's pixels to millimetres."""
    from nibabel.orientations import inv_ornt_aff

    geometry, affine = scan.geometry, scan.geometry.affine
    if affine is None or not _tells_spacing(geometry):
        return UNPLACED
    if geometry.orientation is not None:
        affine = affine @ inv_ornt_aff(geometry.orientation, (*geometry.stored_shape, 1)[:3])
    columns, rows, slices, origin = affine.T
    placed = np.column_stack([slices, rows, columns, origin])
    if geometry.is_placed:
        return placed
    return UNPLACED @ np.diag([*np.linalg.norm(placed[:3, :3], axis=0), 1.0])


def _tells_spacing(geometry: Geometry) -> bool:
    """A NIfTI file without a code for its orientation still says how far apart its voxels lie (pixdim)."""
    return geometry.is_placed or (geometry.kind == "nifti" and is_valid(geometry.affine))


OWN_SPACING = ("own_mm_slices", "own_mm_rows", "own_mm_columns")
"""The facts of a scan about the distances between its voxels, in millimetres; 0 where its file does not say."""


def facts_of_spacing(scan: Scan) -> dict[str, float]:
    """How far apart a scan's slices, rows and columns lie, as the cache keeps it."""
    if not _tells_spacing(scan.geometry):
        return dict.fromkeys(OWN_SPACING, 0.0)
    lengths = np.linalg.norm(affine_of_slices(scan)[:3, :3], axis=0).tolist()
    return dict(zip(OWN_SPACING, lengths, strict=True))


def to_common_grid(values: Pixels, affine: Affine, spacing: Sequence[float] | None, labels: bool = False) -> Gridded:
    """Turn a volume (C, S, H, W) to the common axes and resample it, labels without mixing them."""
    from monai.data.meta_tensor import MetaTensor
    from monai.transforms import Orientation, Spacing

    volume = MetaTensor(torch.from_numpy(values.astype(np.float32)), affine=torch.from_numpy(affine))
    volume = Orientation(AXES, labels=LABELS)(volume)
    if spacing is not None:
        _check_size(volume, spacing)
        mode = "nearest" if labels else "bilinear"
        volume = Spacing(pixdim=spacing, mode=mode, padding_mode="border")(volume)
    return Gridded(np.ascontiguousarray(volume.numpy()), np.asarray(volume.affine, dtype=np.float64))


def _check_size(volume: Any, spacing: Sequence[float]) -> None:
    """Refuse to make far more voxels than a scan may have, as of a wrong spacing in a header."""
    own = np.linalg.norm(np.asarray(volume.affine)[:3, :3], axis=0)
    count = float(np.prod(np.maximum(1.0, np.array(volume.shape[1:]) * own / np.array(spacing)))) * len(volume)
    if count > MOST_VOXELS:
        sizes = " x ".join(f"{step:.3g}" for step in own)
        raise UnreadableError(
            f"its voxels measure {sizes} mm (slices, rows, columns); at data.spacing = {list(spacing)} it would have "
            f"{count:,.0f} of them, at most {MOST_VOXELS:,} are made"
        )


def labels_on_scan(logits: Tensor, affine: Affine, scan: Scan) -> Mask:
    """The most likely class of every voxel (S, H, W) of a scan, from logits (classes, D, H, W) on the common grid.

    Logits are interpolated, not labels, so that outlines are as smooth as the scan's own voxels allow.
    """
    parts = [part.argmax(dim=0).numpy().astype(np.uint16) for part in _sample_slices(logits, affine, scan)]
    return np.concatenate(parts)


def resample_onto(scan: Scan, other: Scan) -> Pixels:
    """The pixels (S, C, H, W) of another scan on the voxels of a scan; both must say how they lie."""
    values = torch.from_numpy(other.pixels.astype(np.float32)).transpose(0, 1)
    parts = [part.transpose(0, 1).numpy() for part in _sample_slices(values, affine_of_slices(other), scan)]
    return np.concatenate(parts)


def _sample_slices(values: Tensor, affine: Affine, scan: Scan) -> Iterator[Tensor]:
    """Values (C, D, H, W) at the voxels of a scan, (C, slices, H, W), a few slices at a time."""
    slices, _, height, width = scan.pixels.shape
    to_grid = torch.from_numpy(np.linalg.inv(affine) @ affine_of_slices(scan))
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    for start in range(0, slices, SLICES_AT_ONCE):
        number = torch.arange(start, min(start + SLICES_AT_ONCE, slices))[:, None, None].expand(-1, height, width)
        voxels = torch.stack([number, rows.expand_as(number), columns.expand_as(number)], dim=-1).double()
        yield sample_at(values, voxels @ to_grid[:3, :3].T + to_grid[:3, 3])


def sample_at(values: Tensor, places: Tensor) -> Tensor:
    """Values (C, D, H, W) at places (…, 3) in voxels, linearly interpolated; beyond the border its own values go on."""
    sizes = torch.tensor(values.shape[1:], dtype=torch.float64)
    scaled = 2 * places / (sizes - 1).clamp_min(1) - 1
    grid = scaled.flip(-1)[None].to(values.dtype)  # columns first
    sampled: Tensor = F.grid_sample(values[None], grid, mode="bilinear", padding_mode="border", align_corners=True)[0]
    return sampled
