import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harmofl.data import preparation
from harmofl.data.preparation import Fit, Planes, to_tensor, widen
from harmofl.data.scans import Geometry, Pixels, Scan, UnreadableError
from harmofl.data.windows import pad_to_size
from harmofl.settings import DataSettings


def scaled(pixels: Pixels, data: DataSettings) -> Planes:
    return preparation.scale_to_unit_range(Scan(pixels), data)


EIGHT_BITS = np.arange(24, dtype=np.uint8).reshape(1, 1, 4, 6)


def test_eight_bit_images_stay_as_they_are() -> None:
    assert scaled(EIGHT_BITS, DataSettings()) is EIGHT_BITS
    assert torch.equal(to_tensor(EIGHT_BITS), torch.arange(24).reshape(1, 1, 4, 6) / 255)


def test_other_images_reach_from_their_minimum_to_their_99th_percentile() -> None:
    pixels = np.linspace(-50, 50, 101, dtype=np.float32).reshape(1, 1, 1, 101)
    found = scaled(pixels, DataSettings())
    assert found.dtype == np.uint16
    values = to_tensor(found).flatten()
    # The 99th percentile of 101 evenly spaced values is the last but one: 49.
    assert values[0] == 0
    assert values[-2] == values[-1] == 1
    assert values[50] == pytest.approx(50 / 99, abs=1e-5)


def test_a_volume_is_scaled_as_a_whole() -> None:
    pixels = np.stack([np.full((1, 4, 4), 10.0), np.full((1, 4, 4), 20.0), np.full((1, 4, 4), 30.0)]).astype(np.float32)
    values = to_tensor(scaled(pixels, DataSettings(intensity="range")))
    assert values[:, 0, 0, 0].tolist() == pytest.approx([0, 0.5, 1], abs=1e-4)


def test_a_fixed_range_clips() -> None:
    pixels = np.array([-1000, -100, 0, 100, 3000], dtype=np.float32).reshape(1, 1, 1, 5)
    values = to_tensor(scaled(pixels, DataSettings(intensity=[-100.0, 300.0])))
    assert values.flatten().tolist() == pytest.approx([0, 0, 0.25, 0.5, 1], abs=1e-4)


def test_channels_are_scaled_one_by_one_unless_they_are_colours() -> None:
    ramp = np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 1, 4, 4)
    for channels, geometry in ((2, Geometry()), (3, Geometry(kind="nifti"))):
        pixels = np.concatenate([ramp * 10**-channel for channel in range(channels)], axis=1)
        planes = preparation.scale_to_unit_range(Scan(pixels, geometry), DataSettings(intensity="range"))
        assert planes.max(axis=(0, 2, 3)).tolist() == [65535] * channels
    colours = np.concatenate([ramp, ramp / 2, ramp / 4], axis=1)
    for kind in ("picture", "dicom"):
        planes = preparation.scale_to_unit_range(Scan(colours, Geometry(kind=kind)), DataSettings(intensity="range"))
        assert planes.max(axis=(0, 2, 3)).tolist() == [65535, 32768, 16384]


@pytest.mark.parametrize("intensity", ["auto", "percentile", "range"])
def test_a_flat_image_is_black_and_finite(intensity: str) -> None:
    assert scaled(np.full((1, 1, 4, 4), 7.0, dtype=np.float32), DataSettings(intensity=intensity)).max() == 0


def test_an_almost_empty_image_keeps_what_it_has() -> None:
    pixels = np.zeros((1, 1, 100, 100), dtype=np.float32)
    pixels[..., 0, 0] = 5
    assert to_tensor(scaled(pixels, DataSettings())).max() == 1


def test_colours_are_made_grey_and_grey_is_made_colour() -> None:
    red = np.zeros((1, 3, 2, 2), dtype=np.uint8)
    red[:, 0] = 200
    assert scaled(red, DataSettings(color="grey")).tolist() == np.full((1, 1, 2, 2), 60).tolist()  # 0.299 · 200
    assert scaled(red[:, :1], DataSettings(color="rgb")).tolist() == np.full((1, 3, 2, 2), 200).tolist()
    with pytest.raises(UnreadableError, match=r"4 channels cannot be made grey \(data.color\)"):
        scaled(np.zeros((1, 4, 2, 2), dtype=np.uint8), DataSettings(color="grey"))


@given(st.integers(0, 255))
def test_widening_changes_no_value(value: int) -> None:
    narrow = np.full((1, 1, 1, 1), value, dtype=np.uint8)
    assert to_tensor(widen(narrow)) == to_tensor(narrow)


def test_tiles_cover_a_large_image_evenly_and_its_mask_alike() -> None:
    image = np.arange(5 * 8, dtype=np.uint8).reshape(1, 1, 5, 8)
    fit = Fit(5, 8, size=4, resize=False)
    tiles = fit.images(image)
    assert fit.tiles == len(tiles) == 4  # two rows that overlap, two columns that do not
    corners = [[0, 4], [8, 12]]  # the second row of tiles begins at 1: rows 1 to 4
    assert tiles[:, 0, 0, 0].tolist() == [corners[0][0], corners[0][1], corners[1][0], corners[1][1]]
    assert np.array_equal(fit.masks(image[:, 0]), tiles[:, 0])


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 16))
def test_tiles_have_one_size_and_miss_no_pixel(height: int, width: int, size: int) -> None:
    image = np.arange(height * width, dtype=np.uint16).reshape(1, 1, height, width)
    tiles = Fit(height, width, size, resize=False).images(image)
    assert tiles.shape == (Fit(height, width, size, resize=False).tiles, 1, size, size)
    assert set(tiles.flatten().tolist()) == set(range(height * width))


def test_small_images_are_mirrored_not_framed_in_black() -> None:
    image = np.array([[[[1, 2, 3]]]], dtype=np.uint8)
    assert pad_to_size(image, (5, 5))[0, 0].tolist() == [[1, 2, 3, 3, 2]] * 5


def test_slices_come_before_tiles() -> None:
    volume = np.stack([np.full((1, 4, 8), value, dtype=np.uint8) for value in (1, 2)])
    assert Fit(4, 8, 4, resize=False).images(volume)[:, 0, 0, 0].tolist() == [1, 1, 2, 2]


def test_resizing_averages_images_and_never_mixes_labels() -> None:
    image = np.array([[0, 100], [100, 200]], dtype=np.uint8).repeat(8, 0).repeat(8, 1)[None, None]
    mask = np.array([[0, 3], [7, 0]], dtype=np.uint8).repeat(8, 0).repeat(8, 1)[None]
    fit = Fit(16, 16, size=4, resize=True)
    assert fit.images(image)[0, 0, ::3, ::3].tolist() == [[0, 100], [100, 200]]
    assert set(fit.masks(mask).flatten().tolist()) == {0, 3, 7}
    assert fit.masks(mask)[0, ::3, ::3].tolist() == [[0, 3], [7, 0]]
    assert fit.tiles == 1
