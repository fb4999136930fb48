"""A mask is laid on its image by the affines of the two, and never turned unless both describe the same grid."""

from itertools import permutations, product
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from harmofl.data.formats import read_mask
from harmofl.data.formats.alignment import OtherGridError, align
from harmofl.data.formats.nifti import read_nifti, read_nifti_labels
from harmofl.data.scans import Geometry, Scan, ScanMask, UnreadableError

SHAPE = (4, 4, 3)
"""Square slices: no size tells that columns and rows were swapped."""
LABELS = np.arange(48, dtype=np.uint8).reshape(SHAPE)
SERIES = np.array([[-0.5, 0, 0, -10], [0, -0.5, 0, -20], [0, 0, 3.0, 5], [0, 0, 0, 1]])
"""Columns to the left, rows to the back, as axial DICOM has it, half a millimetre apart."""


def image(kind: Any = "dicom", affine: np.ndarray | None = SERIES) -> Scan:
    """A scan whose slices are seen as they are stored."""
    geometry = Geometry(kind, np.eye(4) if affine is None else affine, SHAPE, axis=None if affine is None else 2)
    return Scan(np.zeros((3, 1, 4, 4), np.uint8), geometry)


def saved(path: Path, labels: np.ndarray, affine: np.ndarray | None) -> Path:
    """A NIfTI file; without an affine, its header marks both transforms as unknown."""
    written = nib.Nifti1Image(labels, affine)
    if affine is None:
        written.header["sform_code"] = written.header["qform_code"] = 0
    written.to_filename(path)
    return path


def read(tmp_path: Path, affine: np.ndarray | None, scan: Scan, **choice: Any) -> ScanMask:
    return read_mask(saved(tmp_path / "mask.nii", LABELS, affine), scan, **choice)


def as_stored(mask: ScanMask) -> np.ndarray:
    return mask.labels.transpose(2, 1, 0)


def shifted(by: tuple[float, float, float]) -> np.ndarray:
    """The series' grid, moved by so many voxels."""
    move = np.eye(4)
    move[:3, 3] = by
    return SERIES @ move


OTHER_GRIDS = {
    "identity": (np.eye(4), "its affine is a default one, which does not say where it lies; its axes lead to RAS"),
    "no transform": (None, "its file does not say where it lies"),
    "ITK's default": (np.diag([-1.0, -1, 1, 1]), "its affine is a default one"),
    "shifted": (shifted((0, 3, 0)), "its first voxel lies 1.5 mm from the image's"),
    "other spacing": (
        SERIES * [[1.2], [1.2], [1], [1]],
        "its voxels measure 0.6 x 0.6 x 3 mm, the image's 0.5 x 0.5 x 3",
    ),
    "mirrored": (SERIES @ np.diag([-1.0, 1, 1, 1]), "its axes lead to RPS, the image's to LPS"),
}


@pytest.mark.parametrize("grid", OTHER_GRIDS)
def test_a_nifti_mask_on_another_grid_than_its_series_is_refused_with_what_differs(tmp_path: Path, grid: str) -> None:
    affine, words = OTHER_GRIDS[grid]
    with pytest.raises(OtherGridError, match=r"^it is not on the grid of its image: ") as error:
        read(tmp_path, affine, image())
    assert words in str(error.value)
    assert "save it with the affine of its image" in str(error.value)


@pytest.mark.parametrize("grid", OTHER_GRIDS)
def test_voxel_by_voxel_is_the_owners_choice_and_never_turns_the_mask(tmp_path: Path, grid: str) -> None:
    mask = read(tmp_path, OTHER_GRIDS[grid][0], image(), mask_grid="voxels")
    np.testing.assert_array_equal(as_stored(mask), LABELS)
    assert [note.about for note in mask.notes] == ["mask"]


@pytest.mark.parametrize("grid", OTHER_GRIDS)
def test_between_nifti_files_voxels_count_and_every_command_says_so(tmp_path: Path, grid: str) -> None:
    affine, words = OTHER_GRIDS[grid]
    mask = read(tmp_path, affine, image("nifti"))
    np.testing.assert_array_equal(as_stored(mask), LABELS)
    ((about, text),) = mask.notes
    assert about == "grid"
    assert words in text
    assert "taken voxel by voxel, which may be wrong" in text
    with pytest.raises(OtherGridError):
        read(tmp_path, affine, image("nifti"), mask_grid="refuse")


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
@pytest.mark.parametrize("axes", list(permutations(range(3))))
def test_axes_in_another_order_or_from_another_end_are_turned_where_the_grid_is_the_same(
    tmp_path: Path, kind: str, axes: tuple[int, ...]
) -> None:
    for flips in product((1, -1), repeat=3):
        turn = np.column_stack([axes, flips]).astype(float)
        turned = nib.orientations.apply_orientation(LABELS, turn)
        affine = SERIES @ nib.orientations.inv_ornt_aff(turn, SHAPE)
        mask = read_mask(saved(tmp_path / "turned.nii", np.ascontiguousarray(turned), affine), image(kind))
        np.testing.assert_array_equal(as_stored(mask), LABELS)
        is_same = axes == (0, 1, 2) and flips == (1, 1, 1)
        assert [note.about for note in mask.notes] == ([] if is_same else ["mask"])


@pytest.mark.parametrize(("voxels", "is_same"), [(0.45, True), (0.55, False)])
def test_affines_agree_up_to_half_a_voxel(tmp_path: Path, voxels: float, is_same: bool) -> None:
    mask = read(tmp_path, shifted((voxels, 0, 0)), image("nifti"))
    assert (mask.notes == ()) == is_same


def test_a_spacing_that_is_off_by_half_a_voxel_at_the_far_corner_is_another_grid(tmp_path: Path) -> None:
    near, far = (SERIES @ np.diag([scale, 1, 1, 1]) for scale in (1.16, 1.17))  # three steps to the last column
    assert read(tmp_path, near, image("nifti")).notes == ()
    assert read(tmp_path, far, image("nifti")).notes != ()


def test_an_oblique_grid_is_recognized_too(tmp_path: Path) -> None:
    tilt = np.eye(4)
    tilt[:2, :2] = [[np.cos(np.pi / 4), -np.sin(np.pi / 4)], [np.sin(np.pi / 4), np.cos(np.pi / 4)]]
    mask = read(tmp_path, tilt @ SERIES, image(affine=tilt @ SERIES))
    np.testing.assert_array_equal(as_stored(mask), LABELS)
    assert mask.notes == ()


def test_a_mask_of_another_size_is_said_to_be_that(tmp_path: Path) -> None:
    path = saved(tmp_path / "mask.nii", np.zeros((3, 4, 4), np.uint8), np.eye(4))
    with pytest.raises(UnreadableError, match=r"^the mask is 3 x 4 x 4, the image 4 x 4 x 3$"):
        read_mask(path, image())


def test_an_x_ray_says_nothing_of_its_place_so_that_a_nifti_mask_of_it_is_mentioned(tmp_path: Path) -> None:
    mask = read(tmp_path, np.eye(4), image(affine=None))
    np.testing.assert_array_equal(as_stored(mask), LABELS)
    assert [note.about for note in mask.notes] == ["grid"]
    assert "the image's file does not say where it lies" in mask.notes[0].text


def test_two_dicom_files_without_a_place_share_their_rows_and_columns() -> None:
    own = image(affine=None).geometry
    labels, notes = align(LABELS, own, image(affine=None))
    assert labels is LABELS
    assert notes == ()
    assert align(LABELS[..., :1], own, image())[1] == ()
    with pytest.raises(
        OtherGridError, match="its file does not say where it lies"
    ):  # the order of its slices may differ
        align(LABELS, own, image())


def test_files_without_transforms_agree_with_one_another(tmp_path: Path) -> None:
    scan = read_nifti(saved(tmp_path / "image.nii", LABELS, None))
    labels, own = read_nifti_labels(saved(tmp_path / "mask.nii", LABELS, None))
    assert align(labels, own, scan)[1] == ()


def test_one_slice_is_laid_on_whatever_its_thickness(tmp_path: Path) -> None:
    flat = LABELS[..., :1]
    thick = SERIES @ np.diag([1, 1, 9.0, 1])
    scan = Scan(np.zeros((1, 1, 4, 4), np.uint8), Geometry("dicom", SERIES, (4, 4, 1), axis=2))
    mask = read_mask(saved(tmp_path / "mask.nii", flat, thick), scan)
    np.testing.assert_array_equal(as_stored(mask), flat)
