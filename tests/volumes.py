"""Small volumes as hospitals store them: ellipsoids in noise, each with its own grid."""

from pathlib import Path

import nibabel
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SLICES_LAST = np.array([[-1.0, 0, 0, 30], [0, -1.0, 0, 30], [0, 0, 2.0, 0], [0, 0, 0, 1]])
"""Columns to the left, rows to the back, slices to the head: 1 × 1 × 2 mm."""
SAGITTAL = np.array([[0, 0, 1.5, -20], [1.2, 0, 0, -30], [0, 1.2, 0, -15], [0, 0, 0, 1]])
"""Columns to the front, rows to the head, slices to the right: 1.2 × 1.2 × 1.5 mm."""


def coordinates(shape: tuple[int, ...], affine: Array) -> Array:
    """The place in the body of every voxel, (3, *shape), in millimetres."""
    voxels = np.stack(np.meshgrid(*(np.arange(size) for size in shape), indexing="ij"))
    return np.asarray(np.tensordot(affine[:3, :3], voxels, axes=1) + affine[:3, 3].reshape(3, 1, 1, 1))


def ellipsoid(shape: tuple[int, ...], affine: Array, centre: tuple[float, ...], radii: tuple[float, ...]) -> Array:
    """1 inside an ellipsoid of the body, 0 outside."""
    offsets = (coordinates(shape, affine) - np.reshape(centre, (3, 1, 1, 1))) / np.reshape(radii, (3, 1, 1, 1))
    return np.asarray((offsets**2).sum(axis=0) <= 1, dtype=np.float64)


def write_case(
    folder: Path, name: str, seed: int, affine: Array = SLICES_LAST, shape: tuple[int, ...] = (32, 30, 14)
) -> None:
    """Write `NAME.nii.gz` with a bright ellipsoid, and its mask `NAME_segmentation.nii.gz`."""
    random = np.random.default_rng(seed)
    middle = affine[:3, :3] @ (np.array(shape) / 2) + affine[:3, 3]
    mask = ellipsoid(shape, affine, tuple(middle + random.uniform(-2, 2, 3)), (8, 7, 7))
    image = 100 + 300 * mask + random.normal(0, 30, shape)
    folder.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(image.astype(np.int16), affine), folder / f"{name}.nii.gz")
    nibabel.save(nibabel.Nifti1Image(mask.astype(np.uint8), affine), folder / f"{name}_segmentation.nii.gz")


def write_hospitals(folder: Path, cases: int = 4) -> Path:
    """Two hospitals that scan along different axes."""
    for number in range(cases):
        write_case(folder / "A", f"Case{number:02}", seed=number)
        write_case(folder / "B", f"Case{number:02}", seed=100 + number, affine=SAGITTAL, shape=(28, 26, 22))
    return folder
