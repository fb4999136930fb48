"""Pictures: PNG, JPEG, TIFF and Aperio's SVS; and masks as PNG or multi-page TIFF."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harmofl.data.formats.guards import check_size, quiet, reading, to_plain_type
from harmofl.data.scans import Geometry, Mask, Pixels, Scan, UnreadableError
from harmofl.extras import how_to_install

GREY_MODES = ("L", "I;16", "I;16L", "I;16B", "I", "F")
"""Pillow's modes of one number per pixel."""
IN_TRANSPARENCY = (
    "its labels are in its transparency, which is not read; save them as grey values, such as 0 and 255, and a mask "
    "that is empty without an alpha channel"
)
MISSING_CODEC = how_to_install("tiff", "its compression")

JPEG_KINDS = (6, 7, 34892)
APERIO_YCBCR = 33003
"""JPEG 2000 whose colours were never turned into RGB, although nothing in the stream says so."""
APERIO_RGB = 33005

NEARLY_BLACK, WHITE = 64, 128
"""What may be black or blurred in a black-and-white JPEG, and from where on it is white."""
MOST_BLURRED = 0.2
"""The part of a black-and-white JPEG that its compression may leave grey, along edges."""


def read_picture(path: Path) -> Scan:
    """One PNG or JPEG."""
    pixels = to_plain_type(_decoded(path, labels=False))
    return Scan(pixels, Geometry(stored_shape=pixels.shape[2:]))


def read_tiff(path: Path) -> Scan:
    """The first picture of a TIFF or SVS at full resolution; grey pages of one size are slices."""
    stored, notes = _decoded_tiff(path, labels=False)
    pixels = to_plain_type(stored)
    return Scan(pixels, Geometry(stored_shape=pixels.shape[2:], notes=notes))


def read_picture_labels(path: Path, tiff: bool) -> Mask:
    """(columns, rows, slices): the numbers as stored; of a palette, the indices."""
    stored = _decoded_tiff(path, labels=True)[0] if tiff else _decoded(path, labels=True)
    if (stored != stored[:, :1]).any():
        raise UnreadableError("a colour picture; a mask holds one number per pixel")
    labels = stored[:, 0].transpose(2, 1, 0)
    return _black_and_white(labels) if not tiff and is_jpeg(path) else labels


def _black_and_white(labels: Mask) -> Mask:
    """A mask whose two colours JPEG has blurred; other labels cannot be told apart any more."""
    highest = labels.max()
    if 0 < highest < WHITE:
        small = f"a JPEG, which cannot hold small labels (its highest value is {highest}, white would be 255)"
        raise UnreadableError(f"{small}: save masks as PNG or TIFF")
    if ((labels > NEARLY_BLACK) & (labels < 255 - NEARLY_BLACK)).mean() > MOST_BLURRED:
        raise UnreadableError("a JPEG, whose compression changes labels: save masks as PNG or TIFF")
    return np.where(labels >= WHITE, 255, 0).astype(np.uint8)


def is_jpeg(path: Path) -> bool:
    """Whether a picture is a JPEG, whatever its name."""
    with path.open("rb") as file:
        return file.read(3) == b"\xff\xd8\xff"


def label_notes(path: Path) -> tuple[str, ...]:
    """What a careful owner would want to know about a mask that is a PNG or JPEG."""
    return ("a JPEG, whose compression blurs labels: taken as black and white",) if is_jpeg(path) else ()


def write_picture_mask(stem: Path, mask: Mask) -> tuple[Path, bytes]:
    """The path and the content of a mask (S, H, W): a PNG, or for several slices a multi-page TIFF."""
    if mask.dtype not in (np.uint8, np.uint16):
        raise ValueError("labels outside 0 to 65535 do not fit a picture")
    buffer = io.BytesIO()
    with quiet():
        if len(mask) == 1:
            from PIL import Image

            Image.fromarray(mask[0]).save(buffer, "PNG")
            return stem.with_name(f"{stem.name}.png"), buffer.getvalue()
        from tifffile import imwrite

        imwrite(buffer, mask, photometric="minisblack", compression="zlib", metadata={"axes": "ZYX"})
    return stem.with_name(f"{stem.name}.tif"), buffer.getvalue()


def _decoded(path: Path, labels: bool) -> Pixels:
    """(1, C, H, W) of a PNG or JPEG."""
    with reading("picture"):
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(path, formats=("PNG", "JPEG")) as image:
                check_size(*image.size)
                array = _deep_colours(path, labels) if _has_deep_colours(path) else _numbers(image, labels)
        except Image.DecompressionBombError:
            raise UnreadableError("too large: it would unpack to more pixels than are read") from None
        except UnidentifiedImageError:  # its own words name the file
            raise UnreadableError("its start is damaged or cut off") from None
        return (array[..., None] if array.ndim == 2 else array).transpose(2, 0, 1)[None]


def _numbers(image: Any, labels: bool) -> Pixels:
    """(H, W), (H, W, 1) or (H, W, 3): grey as stored, everything else as RGB, without alpha."""
    if labels and image.mode in ("1", "P"):
        return np.asarray(image).astype(np.uint8)
    if image.mode in ("LA", "RGBA"):
        return _opaque(np.asarray(image), -1, 1, labels)
    if image.mode == "1":
        image = image.convert("L")
    elif image.mode not in GREY_MODES:
        image = image.convert("RGB")
    return np.asarray(image)


def _opaque(array: Pixels, axis: int, count: int, labels: bool) -> Pixels:
    """Colours without the last channels of an axis, which say how opaque they are; unseen labels become 0."""
    colours, alpha = np.split(array, [array.shape[axis] - count], axis=axis)
    if not labels or ((alpha == alpha.flat[0]).all() and (alpha.any() or not colours.any())):
        return colours
    seen = colours * alpha.any(axis=axis, keepdims=True)
    if _is_plain(colours, axis) or not seen.any():
        raise UnreadableError(IN_TRANSPARENCY)
    return np.asarray(seen)


def _is_plain(colours: Pixels, axis: int) -> bool:
    """Whether every pixel has the same colour."""
    pixels = np.moveaxis(colours, axis, -1).reshape(-1, colours.shape[axis])
    return bool((pixels == pixels[0]).all())


def _has_deep_colours(path: Path) -> bool:
    """Whether it is a PNG with 16 bits a colour, which Pillow would cut to 8."""
    with path.open("rb") as file:
        start = file.read(26)
    return start.startswith(b"\x89PNG") and start[24] == 16 and start[25] in (2, 4, 6)


def _deep_colours(path: Path, labels: bool) -> Pixels:
    with _codecs():
        from imagecodecs import png_decode

        array: Pixels = np.asarray(png_decode(path.read_bytes()))
    return _opaque(array, -1, 1, labels) if array.shape[-1] in (2, 4) else array


@contextmanager
def _codecs() -> Iterator[None]:
    try:
        yield
    except (ImportError, ValueError) as error:
        if "imagecodecs" in str(error) and ("requires" in str(error) or isinstance(error, ImportError)):
            raise UnreadableError(MISSING_CODEC) from None
        raise


def _decoded_tiff(path: Path, labels: bool) -> tuple[Pixels, tuple[str, ...]]:
    """(S, C, H, W) of a TIFF's first series, and notes."""
    with reading("TIFF"):
        from tifffile import TiffFile

        # the flags keep tifffile from opening other files that this one names
        with TiffFile(path, _multifile=False, is_ndtiff=False, is_mmstack=False) as file:
            series = file.series[0]
            _check_series(series, file.filehandle.size)
            with _codecs():
                array = np.asarray(series.asarray())
            array, axes = _colours(array, series.axes, series.keyframe, labels)
            others = 0 if file.is_svs else len(file.series) - 1
        notes = (f"{others} more pictures of another size in the file are not read",) if others else ()
        return _arranged(array, axes), notes


def _check_series(series: Any, file_size: int) -> None:
    """Everything that can be known to be wrong before decoding."""
    page = series.keyframe
    if "Y" not in series.axes or "X" not in series.axes:
        raise UnreadableError("holds no picture with rows and columns")
    check_size(page.imagewidth, page.imagelength)
    check_size(1, 1, math.prod(series.shape))
    for page in series.pages:
        ends = [start + count for start, count in zip(page.dataoffsets, page.databytecounts, strict=False)]
        if max(ends, default=0) > file_size:
            raise UnreadableError("the file is cut off")


def _arranged(array: Pixels, axes: str) -> Pixels:
    """(S, C, H, W): samples and channels are channels, every other axis is one of pages."""
    pages = [place for place, axis in enumerate(axes) if axis not in "SCYX"]
    channels = [place for place, axis in enumerate(axes) if axis in "SC"]
    ordered = array.transpose(*pages, *channels, axes.index("Y"), axes.index("X"))
    count = math.prod(array.shape[place] for place in channels)
    return ordered.reshape(-1, count, *ordered.shape[-2:])


def _colours(array: Pixels, axes: str, page: Any, labels: bool) -> tuple[Pixels, str]:
    """Grey or RGB from what TIFF calls the photometric interpretation; labels stay as they are stored."""
    array = _without_alpha(array, axes, page, labels)
    if labels:
        return array, axes
    name = page.photometric.name
    if name == "PALETTE":
        return (np.asarray(page.colormap)[:, array] >> 8).astype(np.uint8), f"S{axes}"
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    if name == "MINISWHITE":
        return _inverted(array, page.bitspersample), axes
    if name == "SEPARATED":
        return _converted(array, axes, "CMYK"), axes
    if name == "YCBCR" and page.compression == APERIO_YCBCR:
        return _converted(array, axes, "YCbCr"), axes
    if name not in ("MINISBLACK", "RGB", "MASK") and not _decodes_to_rgb(page):
        raise UnreadableError(f"stores its colours as {name}, which is not read; save it as RGB")
    return array, axes


def _decodes_to_rgb(page: Any) -> bool:
    return page.photometric.name == "YCBCR" and page.compression in (*JPEG_KINDS, APERIO_RGB)


def _without_alpha(array: Pixels, axes: str, page: Any, labels: bool) -> Pixels:
    kinds = {kind.name for kind in page.extrasamples}
    if "S" not in axes or not kinds or kinds - {"ASSOCALPHA", "UNASSALPHA"}:
        return array
    return _opaque(array, axes.index("S"), len(page.extrasamples), labels)


def _inverted(array: Pixels, bits: int) -> Pixels:
    if array.dtype.kind != "u":
        raise UnreadableError(f"stores {array.dtype} with white as zero, which is not read")
    return np.asarray((255 if bits == 1 else 2**bits - 1) - array, dtype=array.dtype)


def _converted(array: Pixels, axes: str, mode: str) -> Pixels:
    """RGB of a picture in another colour space, through Pillow."""
    from PIL import Image

    place = axes.index("S") if "S" in axes else 0
    moved = np.moveaxis(array, place, -1)
    if moved.dtype != np.uint8 or moved.ndim != 3 or moved.shape[-1] != len(Image.new(mode, (1, 1)).getbands()):
        raise UnreadableError(f"stores its colours as {mode} in a way that is not read; save it as RGB")
    height, width, _ = moved.shape
    image = Image.frombytes(mode, (width, height), np.ascontiguousarray(moved).tobytes())
    return np.moveaxis(np.asarray(image.convert("RGB")), -1, place)
