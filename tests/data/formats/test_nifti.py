"""NIfTI: slices seen from one side whatever the stored order, and masks back on the very same voxels."""

import contextlib
import gzip
import itertools
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harmofl.data.formats import guards, nifti, read_mask, read_scan, write_mask
from harmofl.data.scans import UnreadableError

LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""Columns to the left, rows to the back, slices to the head: seen as stored."""
VOLUME = np.arange(24, dtype=np.int16).reshape(2, 3, 4)


def saved(path: Path, array: np.ndarray, affine: np.ndarray = LPS) -> Path:
    nib.Nifti1Image(array, affine).to_filename(path)
    return path


def reason(path: Path) -> str:
    with pytest.raises(UnreadableError) as error:
        read_scan(path)
    assert str(path) not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_pixels_are_slice_channel_row_column(tmp_path: Path, name: str) -> None:
    scan = read_scan(saved(tmp_path / name, VOLUME))
    assert scan.pixels.dtype == np.float32
    assert scan.pixels.shape == (4, 1, 3, 2)
    assert scan.pixels[3, 0, 2, 1] == VOLUME[1, 2, 3]
    assert scan.is_volume
    assert scan.geometry.stored_shape == (2, 3, 4)


def test_eight_bits_stay_eight_bits_unless_the_header_scales_them(tmp_path: Path) -> None:
    array = VOLUME.astype(np.uint8)
    scan = read_scan(saved(tmp_path / "a.nii", array))
    assert scan.pixels.dtype == np.uint8
    np.testing.assert_array_equal(scan.pixels[:, 0], array.transpose(2, 1, 0))
    content = bytearray((tmp_path / "a.nii").read_bytes())
    content[112:120] = np.array([2.0, -3.0], "<f4").tobytes()  # scl_slope, scl_inter
    (tmp_path / "a.nii").write_bytes(content)
    scaled = read_scan(tmp_path / "a.nii").pixels
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled[:, 0], VOLUME.transpose(2, 1, 0) * 2.0 - 3)


def test_a_name_may_lie_about_compression(tmp_path: Path) -> None:
    saved(tmp_path / "a.nii.gz", VOLUME).rename(tmp_path / "a.nii")
    np.testing.assert_array_equal(read_scan(tmp_path / "a.nii").pixels[:, 0], VOLUME.transpose(2, 1, 0))


def test_axial_slices_stored_the_other_way_are_flipped(tmp_path: Path) -> None:
    scan = read_scan(saved(tmp_path / "ras.nii", VOLUME, np.eye(4)))  # columns lead right, rows to the front
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME[::-1, ::-1].transpose(2, 1, 0))


def test_columns_and_rows_stored_in_the_other_order_are_swapped(tmp_path: Path) -> None:
    affine = np.array([[0, -1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])  # P, L, S
    scan = read_scan(saved(tmp_path / "a.nii", VOLUME, affine))
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME.transpose(2, 0, 1))


def test_coronal_and_sagittal_slices_stand_upright(tmp_path: Path) -> None:
    coronal = np.array([[1, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1.0]])  # R, S, P
    scan = read_scan(saved(tmp_path / "c.nii", VOLUME, coronal))
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME[::-1, ::-1].transpose(2, 1, 0))
    sagittal = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1.0]])  # A, I, R
    scan = read_scan(saved(tmp_path / "s.nii", VOLUME, sagittal))
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME[::-1].transpose(2, 1, 0))


def test_slices_are_never_put_in_another_order(tmp_path: Path) -> None:
    down = read_scan(saved(tmp_path / "a.nii", VOLUME, LPS @ np.diag([1, 1, -1, 1])))
    np.testing.assert_array_equal(down.pixels[:, 0], VOLUME.transpose(2, 1, 0))


def test_an_oblique_volume_is_taken_as_the_nearest_straight_one(tmp_path: Path) -> None:
    angle = np.deg2rad(20)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3] = turn @ LPS[:3, :3]
    scan = read_scan(saved(tmp_path / "a.nii", VOLUME, affine))
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME.transpose(2, 1, 0))


def test_an_affine_of_nothing_leaves_the_order_and_a_note(tmp_path: Path) -> None:
    image = nib.Nifti1Image(VOLUME, None)
    image.header["sform_code"] = 1  # with rows of zeros
    image.to_filename(tmp_path / "a.nii")
    scan = read_scan(tmp_path / "a.nii")
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME.transpose(2, 1, 0))
    assert "does not say how it lies" in scan.geometry.notes[0]
    mask = (scan.pixels[:, 0] > 5).astype(np.uint8)
    path = write_mask(tmp_path / "m", mask, scan)
    np.testing.assert_array_equal(read_mask(path, scan).labels, mask)


def test_unknown_codes_are_noted(tmp_path: Path) -> None:
    nib.Nifti1Image(VOLUME, None).to_filename(tmp_path / "a.nii")
    assert "unknown" in read_scan(tmp_path / "a.nii").geometry.notes[0]


@pytest.mark.parametrize(("leads_to", "axis"), [((0, 1, 2), 2), ((1, 0, 2), 2), ((0, 2, 1), 1), ((1, 2, 0), 0)])
def test_the_body_axis_of_the_slices_is_known(tmp_path: Path, leads_to: tuple[int, ...], axis: int) -> None:
    affine = np.zeros((4, 4))
    affine[[*leads_to, 3], range(4)] = (-2, 0.5, -3, 1)
    scan = read_scan(saved(tmp_path / "a.nii", VOLUME, affine))
    assert scan.geometry.axis == axis
    image = nib.nifti1.Nifti1Image(VOLUME, None)
    image.to_filename(tmp_path / "unknown.nii")
    assert read_scan(tmp_path / "unknown.nii").geometry.axis is None


def test_slope_and_intercept_are_applied(tmp_path: Path) -> None:
    content = bytearray(nib.Nifti1Image(VOLUME, LPS).to_bytes())
    content[112:120] = np.array([2.0, -1000.0], "<f4").tobytes()  # scl_slope, scl_inter
    (tmp_path / "a.nii").write_bytes(content)
    np.testing.assert_array_equal(read_scan(tmp_path / "a.nii").pixels[:, 0], VOLUME.transpose(2, 1, 0) * 2.0 - 1000)


def test_a_fourth_axis_holds_channels_up_to_a_limit(tmp_path: Path) -> None:
    array = np.arange(48, dtype=np.float32).reshape(2, 3, 4, 2)
    scan = read_scan(saved(tmp_path / "a.nii", array))
    assert scan.pixels.shape == (4, 2, 3, 2)
    assert scan.pixels[3, 1, 2, 0] == array[0, 2, 3, 1]
    assert "33 volumes" in reason(saved(tmp_path / "b.nii", np.zeros((2, 2, 2, 33), np.uint8)))


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 1, 1, 1)])
def test_one_slice_however_its_axes_are_counted(tmp_path: Path, shape: tuple[int, ...]) -> None:
    scan = read_scan(saved(tmp_path / "a.nii", np.arange(20, dtype=np.uint8).reshape(shape)))
    assert scan.pixels.shape == (1, 1, 4, 5)
    path = write_mask(tmp_path / "m", np.ones((1, 4, 5), np.uint8), scan)
    assert nib.load(path).shape == shape[:3]
    assert read_mask(path, scan).labels.sum() == 20


def test_both_transforms_units_and_spacing_are_kept_in_a_mask(tmp_path: Path) -> None:
    image = nib.Nifti1Image(VOLUME, np.diag([0.5, 0.6, 3.0, 1]))
    image.set_sform(np.diag([-0.5, 0.6, 3.0, 1]), code=4)
    image.set_qform(np.diag([0.5, 0.6, 3.0, 1]), code=1)
    image.header.set_xyzt_units("mm", "sec")
    image.to_filename(tmp_path / "a.nii.gz")
    scan = read_scan(tmp_path / "a.nii.gz")
    written = nib.load(write_mask(tmp_path / "m", np.zeros((4, 3, 2), np.uint8), scan))
    for field in ("sform_code", "qform_code", "srow_x", "srow_y", "srow_z", "quatern_b", "qoffset_x", "xyzt_units"):
        np.testing.assert_array_equal(written.header[field], image.header[field])
    assert written.header.get_zooms() == image.header.get_zooms()
    assert written.get_data_dtype() == np.uint8


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
@pytest.mark.parametrize("endian", ["<", ">"])
def test_both_versions_and_byte_orders(tmp_path: Path, kind: type, endian: str) -> None:
    image = kind(VOLUME, LPS, header=kind.header_class(endianness=endian))
    image.set_sform(LPS, 1)
    image.to_filename(tmp_path / "a.nii")
    scan = read_scan(tmp_path / "a.nii")
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME.transpose(2, 1, 0))
    mask = (scan.pixels[:, 0] * 20).astype(int)
    path = write_mask(tmp_path / "m", mask, scan)
    assert isinstance(nib.load(path), kind)
    np.testing.assert_array_equal(read_mask(path, scan).labels, mask)


def straight_affines() -> st.SearchStrategy[np.ndarray]:
    """Every order and direction of the axes, with spacing, a small turn and an origin."""

    def build(order: tuple[int, ...], signs: list[int], sizes: list[float], angle: float) -> np.ndarray:
        turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        affine = np.eye(4)
        affine[:3, :3] = turn @ (np.eye(3)[:, list(order)] * np.array(signs) * np.array(sizes))
        affine[:3, 3] = (-20, 30, 5)
        return affine

    return st.builds(
        build,
        st.sampled_from(list(itertools.permutations(range(3)))),
        st.lists(st.sampled_from([-1, 1]), min_size=3, max_size=3),
        st.lists(st.floats(0.3, 5), min_size=3, max_size=3),
        st.floats(-0.5, 0.5),
    )


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(affine=straight_affines(), shape=st.tuples(*[st.integers(1, 5)] * 3), seed=st.integers(0, 99))
def test_a_mask_returns_to_the_voxels_that_it_was_made_from(
    tmp_path: Path, affine: np.ndarray, shape: tuple[int, int, int], seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, 300, shape).astype(np.int16)
    scan = read_scan(saved(tmp_path / "image.nii", labels, affine))
    mask = scan.pixels[:, 0].astype(np.int64)  # the perfect prediction: the image's own values
    path = write_mask(tmp_path / "mask", mask, scan)
    written = nib.load(path)
    np.testing.assert_array_equal(np.asarray(written.dataobj), labels)
    np.testing.assert_allclose(written.affine, affine, atol=1e-5)
    np.testing.assert_array_equal(read_mask(path, scan).labels, mask)
    codes = nib.orientations.aff2axcodes(affine)
    assert nib.orientations.aff2axcodes(nib.load(tmp_path / "image.nii").affine) == codes


# Masks of other origin


def test_a_mask_of_another_size_is_refused(tmp_path: Path) -> None:
    scan = read_scan(saved(tmp_path / "a.nii", VOLUME))
    with pytest.raises(UnreadableError, match=r"^the mask is 2 x 3 x 5, the image 2 x 3 x 4$"):
        read_mask(saved(tmp_path / "m.nii", np.zeros((2, 3, 5), np.uint8)), scan)
    with pytest.raises(UnreadableError, match="fourth axis"):
        read_mask(saved(tmp_path / "m.nii", np.zeros((2, 3, 4, 2), np.uint8)), scan)


def test_float_masks_must_be_nearly_whole(tmp_path: Path) -> None:
    scan = read_scan(saved(tmp_path / "a.nii", VOLUME))
    near = read_mask(saved(tmp_path / "n.nii", np.full((2, 3, 4), 0.9999, np.float32)), scan).labels
    assert near.dtype == np.uint8
    assert (near == 1).all()
    for value in (0.5, np.nan):
        with pytest.raises(UnreadableError, match=r"whole|finite"):
            read_mask(saved(tmp_path / "h.nii", np.full((2, 3, 4), value, np.float32)), scan)


def test_negative_and_large_labels_keep_their_values(tmp_path: Path) -> None:
    scan = read_scan(saved(tmp_path / "a.nii", VOLUME))
    labels = np.zeros((2, 3, 4), np.int32)
    labels[0, 0, :2] = (-1, 2**24 + 1)  # the latter is no float32
    mask = read_mask(saved(tmp_path / "m.nii", labels), scan).labels
    assert mask.dtype == np.int32
    assert mask[:2, 0, 0].tolist() == [-1, 2**24 + 1]


def test_a_tiff_of_pages_can_be_the_mask_of_a_volume(tmp_path: Path) -> None:
    scan = read_scan(saved(tmp_path / "a.nii", VOLUME, np.eye(4)))
    tifffile.imwrite(tmp_path / "m.tif", VOLUME.transpose(2, 1, 0).astype(np.uint8), photometric="minisblack")
    np.testing.assert_array_equal(read_mask(tmp_path / "m.tif", scan).labels, scan.pixels[:, 0])


# What cannot be read


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_files_that_are_cut_off_anywhere(tmp_path: Path, name: str, part: float) -> None:
    noise = np.random.default_rng(0).integers(0, 9999, (16, 16, 8)).astype(np.int16)
    path = saved(tmp_path / name, noise)
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    reason(path)


def test_a_damaged_gzip_never_gives_other_voxels(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 99, (16, 16, 8)).astype(np.int16)
    path = saved(tmp_path / "a.nii.gz", noise)
    scan, content = read_scan(path), path.read_bytes()
    refused = 0
    for place in rng.integers(0, len(content), 100):
        broken = bytearray(content)
        broken[place] ^= 1 << rng.integers(0, 8)
        path.write_bytes(broken)
        try:
            np.testing.assert_array_equal(read_scan(path).pixels, scan.pixels)
        except UnreadableError:
            refused += 1
            with pytest.raises(UnreadableError):
                read_mask(path, scan)
    assert refused > 90  # all but bits of gzip's header that mean nothing


def test_a_few_bytes_may_follow_the_voxels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = nib.Nifti1Image(VOLUME, LPS).to_bytes()
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(content + bytes(100)))
    np.testing.assert_array_equal(read_scan(tmp_path / "a.nii.gz").pixels[:, 0], VOLUME.transpose(2, 1, 0))
    monkeypatch.setattr(nifti, "AFTER_LIMIT", 99)
    assert "damaged: more than 99 bytes follow its voxels" in reason(tmp_path / "a.nii.gz")


@pytest.mark.parametrize("zipped", [False, True])
def test_a_header_that_announces_more_than_there_is(tmp_path: Path, zipped: bool) -> None:
    content = bytearray(nib.Nifti1Image(VOLUME, LPS).to_bytes())
    content[42:48] = np.array([500, 500, 500], "<i2").tobytes()
    (tmp_path / "a.nii").write_bytes(gzip.compress(content) if zipped else content)
    assert "cut off: its header announces 250,000,352 bytes" in reason(tmp_path / "a.nii")
    content[42:48] = np.array([30, 30, 30], "<i2").tobytes()  # as much as gzip could hold, but does not
    (tmp_path / "a.nii").write_bytes(gzip.compress(content) if zipped else content)
    reason(tmp_path / "a.nii")


def test_too_many_voxels_are_refused_from_the_header_alone(tmp_path: Path) -> None:
    content = bytearray(nib.Nifti1Image(VOLUME, LPS).to_bytes())
    content[42:48] = np.array([1024, 1024, 1024], "<i2").tobytes()
    (tmp_path / "a.nii").write_bytes(content)
    assert f"at most {guards.VOXEL_LIMIT:,}" in reason(tmp_path / "a.nii")


@pytest.mark.parametrize("sizes", [(0, 3, 4), (-2, 3, 4), (2, 3, 0)])
def test_no_voxels_are_refused(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    content = bytearray(nib.Nifti1Image(VOLUME, LPS).to_bytes())
    content[42:48] = np.array(sizes, "<i2").tobytes()
    (tmp_path / "a.nii").write_bytes(content)
    reason(tmp_path / "a.nii")


def test_other_types_and_too_many_axes_are_refused(tmp_path: Path) -> None:
    assert "complex64" in reason(saved(tmp_path / "a.nii", np.zeros((2, 2, 2), np.complex64)))
    colour = np.zeros((2, 2, 2), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    assert "colours" in reason(saved(tmp_path / "a.nii", colour))
    assert "5 axes" in reason(saved(tmp_path / "a.nii", np.zeros((2, 2, 2, 2, 2), np.uint8)))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_voxels_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    assert "not finite" in reason(saved(tmp_path / "a.nii", np.full((2, 2, 2), value, np.float32)))


def test_a_gzip_of_something_else_and_half_a_pair_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(b"hello" * 200))
    assert reason(tmp_path / "a.nii.gz") == "not a NIfTI file"
    (tmp_path / "b.nii.gz").write_bytes(gzip.compress(b"hello"))
    assert "cut off in its header" in reason(tmp_path / "b.nii.gz")
    nib.Nifti1Pair(VOLUME, LPS).to_filename(tmp_path / "c.hdr")
    assert ".hdr/.img pair" in reason(tmp_path / "c.hdr")


def test_damaged_headers_raise_nothing_but_unreadable(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(2)
    content = np.frombuffer(nib.Nifti1Image(VOLUME, LPS).to_bytes(), np.uint8)
    for _ in range(300):
        broken = content.copy()
        broken[rng.integers(0, 348, 3)] = rng.integers(0, 256, 3)
        (tmp_path / "a.nii").write_bytes(broken.tobytes())
        with contextlib.suppress(UnreadableError):
            scan = read_scan(tmp_path / "a.nii")
            write_mask(tmp_path / "m", np.zeros(scan.pixels[:, 0].shape, np.uint8), scan)
    assert capfd.readouterr() == ("", "")
