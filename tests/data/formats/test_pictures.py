"""PNG, JPEG, TIFF and SVS: the pixels as stored, and a plain message for everything else."""

import contextlib
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from harmofl.data.formats import guards, is_readable, read_mask, read_scan, write_mask
from harmofl.data.scans import Geometry, Scan, UnreadableError

DATA = Path(__file__).parents[3] / ".." / "shared" / "data" / "nuclei-original-layouts"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real nuclei images are not beside this checkout")

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4)
COLOUR = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)


def saved(path: Path, image: Image.Image) -> Path:
    image.save(path)
    return path


def png_header(width: int, height: int) -> bytes:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    header = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return header + struct.pack(">I", 100) + b"IDAT"


def reason(path: Path) -> str:
    with pytest.raises(UnreadableError) as error:
        read_scan(path)
    assert str(path) not in str(error.value)
    return str(error.value)


def test_grey_and_colour_pictures_keep_their_bytes(tmp_path: Path) -> None:
    grey = read_scan(saved(tmp_path / "grey.png", Image.fromarray(GREY)))
    colour = read_scan(saved(tmp_path / "colour.png", Image.fromarray(COLOUR)))
    assert grey.pixels.dtype == colour.pixels.dtype == np.uint8
    np.testing.assert_array_equal(grey.pixels, GREY[None, None])
    np.testing.assert_array_equal(colour.pixels, COLOUR.transpose(2, 0, 1)[None])
    assert not grey.is_volume


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("LA", 1), ("P", 3), ("RGBA", 3), ("I;16", 1)])
def test_every_mode_becomes_one_or_three_channels(tmp_path: Path, mode: str, channels: int) -> None:
    image = Image.fromarray(GREY.astype(np.uint16)) if mode == "I;16" else Image.fromarray(COLOUR).convert(mode)
    assert read_scan(saved(tmp_path / "image.png", image)).pixels.shape == (1, channels, 3, 4)


@pytest.mark.parametrize(("mode", "name"), [("CMYK", "a.jpg"), ("CMYK", "a.tif"), ("YCbCr", "a.jpg")])
def test_printing_and_video_colours_become_rgb(tmp_path: Path, mode: str, name: str) -> None:
    red = Image.new("RGB", (16, 16), (200, 30, 40)).convert(mode)
    pixels = read_scan(saved(tmp_path / name, red)).pixels
    np.testing.assert_allclose(pixels.mean(axis=(0, 2, 3)), (200, 30, 40), atol=3)


def test_alpha_is_dropped_not_multiplied_in(tmp_path: Path) -> None:
    seen_through = np.dstack([COLOUR, np.zeros((3, 4), np.uint8)])
    for name in ("a.png", "a.tif"):
        scan = read_scan(saved(tmp_path / name, Image.fromarray(seen_through)))
        np.testing.assert_array_equal(scan.pixels[0], COLOUR.transpose(2, 0, 1))


def test_sixteen_bits_become_raw_floats_even_in_colour(tmp_path: Path) -> None:
    import imagecodecs

    deep = COLOUR.astype(np.uint16) * 1000
    grey = read_scan(saved(tmp_path / "grey.png", Image.fromarray(deep[..., 0])))
    (tmp_path / "colour.png").write_bytes(imagecodecs.png_encode(deep))
    colour = read_scan(tmp_path / "colour.png")
    assert grey.pixels.dtype == colour.pixels.dtype == np.float32
    np.testing.assert_array_equal(grey.pixels[0, 0], deep[..., 0])
    np.testing.assert_array_equal(colour.pixels[0], deep.transpose(2, 0, 1))


def test_the_turn_that_a_camera_notes_is_ignored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter
    Image.fromarray(COLOUR).save(tmp_path / "turned.png", exif=exif)
    assert read_scan(tmp_path / "turned.png").pixels.shape == (1, 3, 3, 4)


def test_content_counts_not_the_name(tmp_path: Path) -> None:
    Image.new("RGB", (5, 4)).save(tmp_path / "jpeg.png", "JPEG")
    tifffile.imwrite(tmp_path / "tiff.jpg", GREY)
    assert read_scan(tmp_path / "jpeg.png").pixels.shape == (1, 3, 4, 5)
    assert read_scan(tmp_path / "tiff.jpg").pixels.shape == (1, 1, 3, 4)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "uint32", "float32", "float64"])
@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_tiffs_of_any_number_type_and_plane_order(tmp_path: Path, kind: str, planar: str) -> None:
    stored = (COLOUR if planar == "contig" else COLOUR.transpose(2, 0, 1)).astype(kind)
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", planarconfig=planar)
    pixels = read_scan(tmp_path / "a.tif").pixels
    assert pixels.dtype == (np.uint8 if kind == "uint8" else np.float32)
    np.testing.assert_array_equal(pixels[0], COLOUR.transpose(2, 0, 1))


def test_a_tiff_may_have_many_channels(tmp_path: Path) -> None:
    stack = np.arange(60, dtype=np.uint8).reshape(5, 3, 4)
    tifffile.imwrite(tmp_path / "a.tif", stack, photometric="minisblack", metadata={"axes": "CYX"})
    np.testing.assert_array_equal(read_scan(tmp_path / "a.tif").pixels, stack[None])


@pytest.mark.parametrize("axes", ["ZYX", "QYX", "TYX", None])
def test_grey_pages_are_slices(tmp_path: Path, axes: str | None) -> None:
    stack = np.arange(60, dtype=np.uint8).reshape(5, 3, 4)
    metadata = {"axes": axes} if axes else None
    tifffile.imwrite(tmp_path / "a.tif", stack, photometric="minisblack", metadata=metadata)
    scan = read_scan(tmp_path / "a.tif")
    np.testing.assert_array_equal(scan.pixels, stack[:, None])
    assert scan.is_volume
    assert scan.geometry.kind == "picture"


def test_only_the_full_resolution_of_a_pyramid_is_read(tmp_path: Path) -> None:
    large = np.full((64, 64, 3), 7, np.uint8)
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(large, subifds=1, photometric="rgb")
        file.write(large[::2, ::2], subfiletype=1, photometric="rgb")
    scan = read_scan(tmp_path / "a.tif")
    assert scan.pixels.shape == (1, 3, 64, 64)
    assert scan.geometry.notes == ()


def test_further_pictures_in_a_tiff_are_noted(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(GREY, photometric="minisblack", metadata=None)
        file.write(GREY[:2], photometric="minisblack", metadata=None)
    scan = read_scan(tmp_path / "a.tif")
    np.testing.assert_array_equal(scan.pixels[0, 0], GREY)
    assert "1 more" in scan.geometry.notes[0]


def test_white_as_zero_is_turned_round_and_a_palette_painted(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "white.tif", GREY, photometric="miniswhite")
    np.testing.assert_array_equal(read_scan(tmp_path / "white.tif").pixels[0, 0], 255 - GREY)
    palette = np.zeros((3, 256), np.uint16)
    palette[0, 5] = 0xAB00
    tifffile.imwrite(tmp_path / "palette.tif", GREY, photometric="palette", colormap=palette)
    scan = read_scan(tmp_path / "palette.tif")
    assert scan.pixels.shape == (1, 3, 3, 4)
    assert scan.pixels[0, :, 1, 1].tolist() == [0xAB, 0, 0]
    np.testing.assert_array_equal(read_mask(tmp_path / "palette.tif", scan).labels[0], GREY)


def test_tiff_compressions_that_need_codecs(tmp_path: Path) -> None:
    for compression in ("lzw", "zlib", "zstd", "jpeg2000"):
        tifffile.imwrite(tmp_path / "a.tif", np.tile(COLOUR, (8, 8, 1)), photometric="rgb", compression=compression)
        assert read_scan(tmp_path / "a.tif").pixels.shape == (1, 3, 24, 32)


def test_jpeg_within_tiff_comes_back_as_rgb(tmp_path: Path) -> None:
    red = np.full((16, 16, 3), (200, 30, 40), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", red, photometric="rgb", compression="jpeg")
    np.testing.assert_allclose(read_scan(tmp_path / "a.tif").pixels.mean(axis=(0, 2, 3)), (200, 30, 40), atol=3)


def test_a_missing_codec_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile.imwrite(tmp_path / "a.tif", GREY, compression="lzw")

    def asarray(*_: object, **__: object) -> None:
        raise ValueError("<COMPRESSION.LZW: 5> requires the 'imagecodecs' package")

    monkeypatch.setattr(tifffile.TiffPageSeries, "asarray", asarray)
    assert "pip install 'harmofl[tiff]'" in reason(tmp_path / "a.tif")


# Masks


def picture(height: int = 3, width: int = 4) -> Scan:
    return Scan(np.zeros((1, 3, height, width), np.uint8))


def test_a_palettes_indices_are_the_labels(tmp_path: Path) -> None:
    image = Image.fromarray(GREY, mode=None).convert("P")
    image.putdata(GREY.flatten().tolist())
    np.testing.assert_array_equal(read_mask(saved(tmp_path / "m.png", image), picture()).labels[0], GREY)


def test_masks_of_one_bit_of_grey_colour_and_of_large_labels(tmp_path: Path) -> None:
    shape = GREY > 5
    bit = read_mask(saved(tmp_path / "bit.png", Image.fromarray(shape)), picture()).labels
    grey = read_mask(saved(tmp_path / "rgba.png", Image.fromarray(GREY).convert("RGBA")), picture()).labels
    deep = read_mask(saved(tmp_path / "deep.png", Image.fromarray(GREY.astype(np.uint16) * 300)), picture()).labels
    np.testing.assert_array_equal(bit[0], shape)
    np.testing.assert_array_equal(grey[0], GREY)
    np.testing.assert_array_equal(deep[0], GREY.astype(int) * 300)
    assert (bit.dtype, grey.dtype, deep.dtype) == (np.uint8, np.uint8, np.uint16)


def test_labels_may_be_nearly_whole_but_not_half(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "near.tif", np.full((3, 4), 0.9999, np.float32))
    tifffile.imwrite(tmp_path / "half.tif", np.full((3, 4), 0.5, np.float32))
    assert read_mask(tmp_path / "near.tif", picture()).labels.tolist() == [[[1] * 4] * 3]
    with pytest.raises(UnreadableError, match=r"not whole numbers, such as 0\.5"):
        read_mask(tmp_path / "half.tif", picture())


def test_a_mask_of_another_size_or_in_colour_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="the mask is 4 x 3, the image 4 x 5"):
        read_mask(saved(tmp_path / "m.png", Image.fromarray(GREY)), picture(height=5))
    with pytest.raises(UnreadableError, match="colour"):
        read_mask(saved(tmp_path / "c.png", Image.fromarray(COLOUR)), picture())


def test_a_jpeg_mask_is_black_and_white_or_refused(tmp_path: Path) -> None:
    disk = np.zeros((40, 40), dtype=np.uint8)
    disk[10:30, 10:30] = 255
    found = read_mask(saved(tmp_path / "m.jpg", Image.fromarray(disk)), Scan(np.zeros((1, 1, 40, 40), np.uint8))).labels
    np.testing.assert_array_equal(found[0], disk)
    labels = saved(tmp_path / "l.jpg", Image.fromarray(disk // 2))
    with pytest.raises(UnreadableError, match="save masks as PNG"):
        read_mask(labels, Scan(np.zeros((1, 1, 40, 40), np.uint8)))


@pytest.mark.parametrize("labels", [1, 3])
def test_a_jpeg_of_small_labels_is_refused_and_an_empty_one_is_empty(tmp_path: Path, labels: int) -> None:
    mask = np.zeros((40, 40), dtype=np.uint8)
    scan = Scan(np.zeros((1, 1, 40, 40), np.uint8))
    assert not read_mask(saved(tmp_path / "empty.jpg", Image.fromarray(mask)), scan).labels.any()
    mask[10:30, 10:30] = labels
    with pytest.raises(UnreadableError, match=r"cannot hold small labels .*: save masks as PNG"):
        read_mask(saved(tmp_path / "small.jpg", Image.fromarray(mask)), scan)


WHITE = np.full((3, 4), 255, np.uint8)
DRAWN = 255 * np.eye(3, 4, dtype=np.uint8)


@pytest.mark.parametrize("name", ["m.png", "m.tif"])
@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_what_is_fully_transparent_in_a_mask_is_background(tmp_path: Path, name: str, mode: str) -> None:
    labels, alpha = GREY + 1, np.where(DRAWN > 0, 90, 0).astype(np.uint8)
    path = saved(tmp_path / name, with_alpha(mode, labels, alpha))
    np.testing.assert_array_equal(read_mask(path, picture()).labels[0], np.where(DRAWN > 0, labels, 0))
    path = saved(tmp_path / name, with_alpha(mode, labels, WHITE // 2))
    np.testing.assert_array_equal(read_mask(path, picture()).labels[0], labels)


@pytest.mark.parametrize("name", ["m.png", "m.tif"])
@pytest.mark.parametrize("mode", ["LA", "RGBA"])
@pytest.mark.parametrize("colours", [WHITE, 0 * WHITE, 255 - DRAWN])
def test_a_mask_drawn_in_its_transparency_is_refused(tmp_path: Path, name: str, mode: str, colours: np.ndarray) -> None:
    path = saved(tmp_path / name, with_alpha(mode, colours, DRAWN))
    with pytest.raises(UnreadableError, match="its labels are in its transparency"):
        read_mask(path, picture())


def test_a_mask_of_which_nothing_is_seen_is_empty_or_refused(tmp_path: Path) -> None:
    assert not read_mask(saved(tmp_path / "black.png", with_alpha("LA", 0 * WHITE, 0 * WHITE)), picture()).labels.any()
    with pytest.raises(UnreadableError, match=r"in its transparency.* that is empty without an alpha channel"):
        read_mask(saved(tmp_path / "white.png", with_alpha("LA", WHITE, 0 * WHITE)), picture())


def with_alpha(mode: str, grey: np.ndarray, alpha: np.ndarray) -> Image.Image:
    image = Image.fromarray(grey).convert(mode)
    image.putalpha(Image.fromarray(alpha))
    return image


def test_a_deep_mask_drawn_in_its_transparency_is_refused(tmp_path: Path) -> None:
    import imagecodecs

    deep = np.dstack([WHITE, WHITE, WHITE, DRAWN]).astype(np.uint16)
    (tmp_path / "m.png").write_bytes(imagecodecs.png_encode(deep))
    with pytest.raises(UnreadableError, match="its labels are in its transparency"):
        read_mask(tmp_path / "m.png", picture())


def test_a_jpeg_mask_is_noted(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.jpg", Image.fromarray(np.full((3, 4), 255, np.uint8)))
    assert "JPEG" in read_mask(path, picture()).notes[0].text


@pytest.mark.parametrize("top", [1, 255, 256, 65535])
def test_a_written_mask_reads_back_the_same(tmp_path: Path, top: int) -> None:
    mask = np.array([[[0, 1, top]]])
    scan = picture(height=1, width=3)
    path = write_mask(tmp_path / "new" / "slide.v1", mask, scan)
    assert path == tmp_path / "new" / "slide.v1.png"
    np.testing.assert_array_equal(read_mask(path, scan).labels, mask)


def test_a_written_stack_is_a_tiff_of_pages(tmp_path: Path) -> None:
    mask = np.arange(24).reshape(3, 2, 4)
    scan = Scan(np.zeros((3, 1, 2, 4), np.uint8), Geometry())
    path = write_mask(tmp_path / "stack", mask, scan)
    assert path.name == "stack.tif"
    np.testing.assert_array_equal(read_mask(path, scan).labels, mask)


def test_a_mask_of_the_wrong_shape_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shape"):
        write_mask(tmp_path / "m", np.zeros((1, 3, 3), np.uint8), picture())
    with pytest.raises(ValueError, match="65535"):
        write_mask(tmp_path / "m", np.full((1, 3, 4), 70000), picture())
    assert list(tmp_path.iterdir()) == []


# What cannot be read


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 400, b"GIF89a" + b"\0" * 400])
def test_what_is_no_image_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.png").write_bytes(content)
    assert reason(tmp_path / "file.png").startswith("not an image" if content else "an empty file")


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif"])
@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.95])
def test_files_that_are_cut_off_anywhere(tmp_path: Path, name: str, part: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = saved(tmp_path / name, Image.fromarray(noise))
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    reason(path)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "b.tif"])
def test_damaged_bytes_raise_nothing_but_unreadable(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    path = tmp_path / name
    saved(path, Image.fromarray(noise))
    if name == "b.tif":
        tifffile.imwrite(path, noise, compression="lzw", photometric="rgb")
    content = np.frombuffer(path.read_bytes(), np.uint8)
    for _ in range(60):
        broken = content.copy()
        broken[rng.integers(0, min(300, len(broken)), 4)] = rng.integers(0, 256, 4)
        path.write_bytes(broken.tobytes())
        with contextlib.suppress(UnreadableError):
            read_scan(path)


@pytest.mark.parametrize("width", [10_000, 14_000, 60_000])
def test_a_decompression_bomb_is_refused(tmp_path: Path, width: int) -> None:
    (tmp_path / "bomb.png").write_bytes(png_header(width, width))
    assert "too large" in reason(tmp_path / "bomb.png")


def test_the_limit_is_pillows_own() -> None:
    assert Image.MAX_IMAGE_PIXELS == guards.PIXEL_LIMIT


def test_a_tiff_bomb_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((20, 20), np.uint8), compression="zlib")
    monkeypatch.setattr(guards, "PIXEL_LIMIT", 399)
    monkeypatch.setattr(tifffile.TiffPageSeries, "asarray", lambda *_, **__: pytest.fail("decoded"))
    assert "too large: 20 x 20 = 400 pixels, at most 399" in reason(tmp_path / "a.tif")


def test_a_stack_of_too_many_pages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((10, 8, 8), np.uint8), photometric="minisblack")
    monkeypatch.setattr(guards, "VOXEL_LIMIT", 639)
    assert "too large" in reason(tmp_path / "a.tif")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_pixels_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.array([[0.0, value]]))
    assert "not finite" in reason(tmp_path / "a.tif")


def test_complex_pixels_are_refused(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((2, 2), np.complex64))
    assert "complex64" in reason(tmp_path / "a.tif")


def test_colours_that_are_not_read_are_named(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", COLOUR, photometric="cielab")
    assert "CIELAB" in reason(tmp_path / "a.tif")


def test_other_files_that_a_tiff_names_are_not_opened(tmp_path: Path) -> None:
    other = "urn:uuid:00000000-0000-0000-0000-000000000000"
    xml = (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0">'
        '<Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" SizeX="4" SizeY="3" SizeC="1" SizeZ="2" SizeT="1">'
        f'<TiffData FirstZ="0" IFD="0"><UUID FileName="secret.tif">{other}</UUID></TiffData></Pixels></Image></OME>'
    )
    tifffile.imwrite(tmp_path / "secret.tif", GREY + 100)
    tifffile.imwrite(tmp_path / "a.ome.tif", GREY, description=xml, metadata=None)
    np.testing.assert_array_equal(read_scan(tmp_path / "a.ome.tif").pixels, GREY[None, None])


def test_pipes_missing_files_and_texts_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "page.png").write_text("<html></html>")
    assert reason(tmp_path / "pipe.png") == "not a file"
    assert reason(tmp_path / "missing.png") == "no such file"
    assert "not an image" in reason(tmp_path / "page.png")
    assert not is_readable(tmp_path / "pipe.png")


@pytest.mark.parametrize("name", ["a.PNG", "a.jpeg", "a.svs", "a.nii.gz", "a.dcm"])
def test_what_looks_readable(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert is_readable(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt", "a.gz", ".a.png", "a", "DICOMDIR", "missing/a.png"])
def test_what_does_not_look_readable(tmp_path: Path, name: str) -> None:
    if "/" not in name:
        (tmp_path / name).write_bytes(b"x")
    assert not is_readable(tmp_path / name)
    assert not is_readable(tmp_path)


@needs_data
def test_real_slides_in_jpeg_2000_are_read_at_full_resolution() -> None:
    path = next(DATA.rglob("TCGA-A2-A0ES-01Z-00-DX1_003.svs"))
    scan = read_scan(path)
    assert scan.pixels.shape == (1, 3, 171, 634)
    assert scan.geometry.notes == ()
    red, green, blue = scan.pixels.mean(axis=(0, 2, 3))
    assert red > green < blue  # pink and violet


@needs_data
def test_real_pictures_that_are_jpeg_inside_and_their_masks() -> None:
    scan = read_scan(DATA / "TNBC_NucleiSegmentation" / "Slide_01" / "01_1.png")
    mask = read_mask(DATA / "TNBC_NucleiSegmentation" / "GT_01" / "01_1.png", scan).labels
    assert scan.pixels.shape == (1, 3, 512, 512)
    assert mask.shape == (1, 512, 512)
    assert mask.dtype == np.uint8
    assert 0.02 < (mask > 0).mean() < 0.6
