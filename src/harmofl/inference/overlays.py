"""Pictures of masks on their images: one picture, or the slices of a volume in which there is most to see."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harmofl.data.preparation import Planes
from harmofl.data.scans import Geometry, Mask
from harmofl.files import write_whole
from harmofl.labels import font_file, readable, shorten

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from PIL.ImageFont import FreeTypeFont

Colour = tuple[int, int, int]

COLOURS: tuple[Colour, ...] = (
    (240, 228, 66),
    (86, 180, 233),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (0, 114, 178),
)
"""Okabe and Ito's, safe for colour-blind readers; first those that stand out on grey as well as on pink and violet."""
PAPER: Colour = (28, 33, 39)
INK: Colour = (236, 238, 240)
MUTED: Colour = (150, 158, 168)

FILL = 0.25
"""How much of a class's colour covers the image inside its outline."""
SMALLEST, LARGEST, CELL = 512, 2048, 300
"""The longer side of a picture is brought between the first two, that of a slice to the last."""
MOST_SLICES, COLUMNS = 12, 4
GAP, TEXT, LINE = 10, 15, 23
LONGEST_NAME = 40


def colour_of(number: int) -> Colour:
    """The colour of a class; 0 is background and has none."""
    return COLOURS[(number - 1) % len(COLOURS)]


def write_overlay(
    path: Path, name: str, planes: Planes, labels: Mask, classes: Sequence[str], geometry: Geometry
) -> None:
    """Draw labels (S, H, W) on slices (S, C, H, W) and write a PNG."""
    aspect = pixel_aspect(geometry)
    if len(labels) == 1:
        picture = _add_caption(draw_slice(planes[0], labels[0], aspect), classes)
    else:
        picture = _montage(name, planes, labels, classes, aspect)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=3)  # twice as fast, hardly larger
    write_whole(path, buffer.getvalue())


def pixel_aspect(geometry: Geometry) -> float:
    """A pixel's height for a width of one, as the slices are seen."""
    if geometry.affine is None or geometry.orientation is None:
        return 1.0
    lengths = np.linalg.norm(geometry.affine[:3, :3], axis=0)
    seen = {int(axis): length for axis, length in zip(geometry.orientation[:, 0], lengths, strict=True)}
    return float(seen[1] / seen[0])


def draw_slice(plane: Planes, labels: Mask, aspect: float, longest: int | None = None) -> Picture:
    """One slice with the outlines of its classes, at a size at which they can be seen."""
    from PIL import Image

    height, width = labels.shape[0] * aspect, labels.shape[1] * 1.0
    side = longest or min(max(max(height, width), SMALLEST), LARGEST)
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    image = np.asarray(Image.fromarray(_colours(plane)).resize(size, Image.Resampling.BICUBIC))
    return Image.fromarray(draw_labels(image, resize_labels(labels, size), thickness=max(1, round(side / 300))))


def resize_labels(labels: Mask, size: tuple[int, int]) -> Mask:
    """Bring labels (H, W) to a size (width, height); where they shrink, a class stays that covers any of a pixel."""
    from PIL import Image

    if size[0] >= labels.shape[1] and size[1] >= labels.shape[0]:
        return np.asarray(Image.fromarray(labels).resize(size, Image.Resampling.NEAREST))
    numbers = [0, *np.unique(labels[labels > 0]).tolist()]
    parts = [Image.fromarray((labels == number).astype(np.float32)) for number in numbers[1:]]
    covered = [np.asarray(part.resize(size, Image.Resampling.BOX)) for part in parts]
    stacked = np.stack([np.full(size[::-1], 1e-6), *covered])
    chosen: Mask = np.asarray(numbers, dtype=labels.dtype)[stacked.argmax(axis=0)]
    return chosen


def _colours(plane: Planes) -> NDArray[np.uint8]:
    """(H, W, 3): RGB as it is, of anything else the first channel."""
    shown = plane if len(plane) == 3 else np.repeat(plane[:1], 3, axis=0)
    eight_bits = shown if shown.dtype == np.uint8 else shown // 257
    return np.ascontiguousarray(eight_bits.astype(np.uint8).transpose(1, 2, 0))


def draw_labels(image: NDArray[np.uint8], labels: Mask, thickness: int) -> NDArray[np.uint8]:
    """Tint every class and draw its outline around it, on background, so that nothing thin is covered."""
    drawn = image.astype(np.float32)
    background = labels == 0
    halo = grow(~background, thickness + 1) & background
    drawn[halo] *= 0.4  # the dark rim of the lines: seen on bright images too
    for number in np.unique(labels[labels > 0]):
        inside, colour = labels == number, np.array(colour_of(int(number)), dtype=np.float32)
        drawn[inside] = (1 - FILL) * drawn[inside] + FILL * colour
        touching = inside & grow(~background & ~inside, 1)  # between two classes there is no background
        drawn[touching | (grow(inside, thickness) & background)] = colour
    return np.rint(drawn).astype(np.uint8)


def grow(inside: NDArray[np.bool_], steps: int) -> NDArray[np.bool_]:
    """Add the pixels that are so near to a region."""
    from scipy.ndimage import binary_dilation

    return np.asarray(binary_dilation(inside, iterations=steps))


def _montage(name: str, planes: Planes, labels: Mask, classes: Sequence[str], aspect: float) -> Picture:
    """The slices with the largest foreground, in order, each with its number."""
    from PIL import Image, ImageDraw

    areas = (labels > 0).sum(axis=(1, 2))
    chosen = choose_slices(areas)
    cells = [draw_slice(planes[number], labels[number], aspect, CELL) for number in chosen]
    columns = min(COLUMNS, len(cells))
    across, down, head = cells[0].width + GAP, cells[0].height + GAP + LINE, LINE + GAP
    title = readable(f"{name}: {_describe_slices(areas, len(chosen), _names(classes))}")
    font = _font(title)
    width = max(columns * across, math.ceil(font.getlength(title)) + GAP) + GAP
    sheet = Image.new("RGB", (width, head + math.ceil(len(cells) / columns) * down), PAPER)
    draw: Any = ImageDraw.Draw(sheet)
    draw.text((GAP, GAP), title, fill=INK, font=font)
    for place, (number, cell) in enumerate(zip(chosen, cells, strict=True)):
        left, top = GAP + place % columns * across, head + place // columns * down
        draw.text((left, top), f"{number + 1}", fill=MUTED, font=font)
        sheet.paste(cell, (left, top + LINE - 2))
    return _add_caption(sheet, classes)


def choose_slices(areas: NDArray[np.int64]) -> list[int]:
    """Up to twelve slices in order: those with most foreground, or if there is none some from end to end."""
    count = min(MOST_SLICES, np.count_nonzero(areas) or len(areas))
    if not areas.any():
        return [round(place) for place in np.linspace(0, len(areas) - 1, count)]
    return sorted(np.argsort(-areas, kind="stable")[:count].tolist())


def _add_caption(picture: Picture, classes: Sequence[str]) -> Picture:
    """With a line below that names the colours, if there are several."""
    from PIL import Image, ImageDraw

    if len(classes) <= 2:
        return picture
    names = [shorten(name, LONGEST_NAME) for name in classes]
    font = _font("".join(names))
    rows: list[list[int]] = [[]]
    widths = {number: 2 * TEXT + math.ceil(font.getlength(names[number])) for number in range(1, len(classes))}
    for number, width in widths.items():
        if rows[-1] and GAP + sum(widths[other] for other in rows[-1]) + width > picture.width:
            rows.append([])
        rows[-1].append(number)
    wide = max(picture.width, *(GAP + width for width in widths.values()))
    sheet = Image.new("RGB", (wide, picture.height + LINE * len(rows) + 4), PAPER)
    sheet.paste(picture, (0, 0))
    draw: Any = ImageDraw.Draw(sheet)
    for row, numbers in enumerate(rows):
        left, top = GAP, picture.height + 5 + row * LINE
        for number in numbers:
            draw.rectangle((left, top + 3, left + TEXT - 5, top + TEXT - 2), fill=colour_of(number))
            draw.text((left + TEXT, top), names[number], fill=INK, font=font)
            left += widths[number]
    return sheet


def _names(classes: Sequence[str]) -> str:
    return classes[1] if len(classes) == 2 and not classes[1].isdecimal() else "foreground"


def _describe_slices(areas: NDArray[np.int64], shown: int, what: str) -> str:
    filled = np.count_nonzero(areas)
    most = f" (the {shown} with most are shown)" if filled > shown else ""
    return f"{len(areas)} slices, {filled or 'none'} with {what}{most}"


def _font(text: str) -> FreeTypeFont:
    """The font that has most of a text's letters."""
    from PIL import ImageFont

    return ImageFont.truetype(font_file(text), TEXT)
