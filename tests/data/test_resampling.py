import numpy as np
import pytest
import torch

from harmofl.data.formats import read_mask, read_scan
from harmofl.data.resampling import affine_of_slices, labels_on_scan, sample_at, to_common_grid
from harmofl.data.scans import UnreadableError
from volumes import SAGITTAL, SLICES_LAST, Array, coordinates, write_case

AFFINES = {"axial": SLICES_LAST, "sagittal": SAGITTAL}
SHAPES = {"axial": (32, 30, 14), "sagittal": (28, 26, 22)}
COMMON = np.array([[0, 0, -1.0, 0], [0, -1.0, 0, 0], [1.0, 0, 0, 0], [0, 0, 0, 1]])


@pytest.fixture(params=AFFINES)
def view(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def body(places: Array) -> Array:
    """A linear function of the place in the body, which linear interpolation keeps exactly."""
    return np.asarray(2 * places[0] - 3 * places[1] + places[2])


def test_slices_know_where_they_lie_however_they_are_stored(tmp_path, view: str) -> None:
    write_case(tmp_path, "a", seed=0, affine=AFFINES[view], shape=SHAPES[view])
    scan = read_scan(tmp_path / "a.nii.gz")
    mask = read_mask(tmp_path / "a_segmentation.nii.gz", scan).labels
    stored = coordinates(SHAPES[view], AFFINES[view])
    inside = np.argwhere(mask)
    seen = (affine_of_slices(scan) @ np.c_[inside, np.ones(len(inside))].T)[:3].mean(axis=1)
    import nibabel

    truth = np.asarray(nibabel.load(tmp_path / "a_segmentation.nii.gz").dataobj) > 0
    assert seen == pytest.approx(stored[:, truth].mean(axis=1))


def test_a_volume_is_turned_to_the_common_axes_and_resampled_in_millimetres(view: str) -> None:
    shape, affine = SHAPES[view], AFFINES[view]
    values = body(coordinates(shape, affine))[None].astype(np.float32)
    gridded = to_common_grid(values, affine, spacing=(1.0, 0.7, 0.9))
    assert gridded.spacing == pytest.approx((1.0, 0.7, 0.9))
    assert np.allclose(gridded.affine[:3, :3] / gridded.spacing, COMMON[:3, :3])
    lengths = np.abs(affine[:3, :3]) @ (np.array(shape) - 1)  # left-right, back-front, feet-head
    expected = np.round(lengths[::-1] / gridded.spacing) + 1
    assert gridded.values.shape[1:] == tuple(expected.astype(int))
    inner = (slice(1, -1),) * 3  # the last voxels may lie beyond the border, where the border's values go on
    truth = body(coordinates(gridded.values.shape[1:], gridded.affine))
    assert np.allclose(gridded.values[0][inner], truth[inner], atol=1e-2)


def test_a_prediction_lands_on_the_scans_own_voxels(tmp_path, view: str) -> None:
    write_case(tmp_path, "a", seed=0, affine=AFFINES[view], shape=SHAPES[view])
    scan = read_scan(tmp_path / "a.nii.gz")
    grid = to_common_grid(scan.pixels.swapaxes(0, 1), affine_of_slices(scan), (0.5, 0.5, 0.5))
    height = body(coordinates(grid.values.shape[1:], grid.affine))
    threshold = float(height.mean()) + 0.123  # no voxel lies on the plane
    logits = torch.from_numpy(np.stack([np.zeros_like(height), height - threshold])).float()
    found = labels_on_scan(logits, grid.affine, scan)
    truth = body(coordinates(found.shape, affine_of_slices(scan))) > threshold
    inner = (slice(1, -1),) * 3
    assert (found[inner] == truth[inner]).all()
    assert 0.2 < truth.mean() < 0.8


def test_values_between_voxels_are_interpolated_and_go_on_beyond_the_border() -> None:
    values = torch.arange(8.0).reshape(1, 2, 2, 2)
    places = torch.tensor([[0.0, 0, 0], [1, 1, 1], [0.5, 0, 0], [0, 0.25, 0.5], [9, 9, 9]], dtype=torch.float64)
    assert sample_at(values, places[None, None])[0, 0, 0].tolist() == [0, 7, 2, 1, 7]


def test_a_spacing_that_would_make_far_too_many_voxels_is_refused() -> None:
    values = np.zeros((1, 8, 8, 8), dtype=np.float32)
    affine = np.diag([1000.0, 1000, 1000, 1])
    with pytest.raises(UnreadableError, match=r"voxels measure 1e\+03 x .* at data\.spacing = \[1, 1, 1\]"):
        to_common_grid(values, affine, [1, 1, 1])
