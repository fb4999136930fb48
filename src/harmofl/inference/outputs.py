"""What a prediction writes: masks that lie on their images, and a table of classes."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from harmofl.data.formats import write_mask, write_segmentation_object
from harmofl.data.scans import Mask, Scan, UnreadableError
from harmofl.files import write_whole
from harmofl.inference.inputs import stem_of
from harmofl.inference.overlays import colour_of

EXTENSIONS = (".png", ".tif", ".nii.gz", ".dcm")


def output_stems(paths: Sequence[Path], out: Path) -> dict[Path, Path]:
    """Where the output of each image goes, without suffix: as the images lie below the folder that holds them all.

    No two are the same, whatever the case of their letters: of `a.png` and `a.tif` come `a_png` and `a_tif`.
    """
    absolute = [Path(os.path.abspath(path)) for path in paths]
    common = os.path.commonpath([path.parent for path in absolute])
    places = [out / path.parent.relative_to(common) for path in absolute]
    short = [place / stem_of(path) for place, path in zip(places, absolute, strict=True)]
    counts = Counter(str(stem).lower() for stem in short)
    taken = {name for name, count in counts.items() if count == 1}
    stems = []
    for path, place, stem in zip(absolute, places, short, strict=True):
        if counts[str(stem).lower()] > 1:
            stem = _free(place / path.name.replace(".", "_"), taken)
        stems.append(stem)
    return dict(zip(paths, stems, strict=True))


def _free(stem: Path, taken: set[str]) -> Path:
    """The stem, with a number if another has it; from now on it is taken."""
    name, number = stem, 1
    while str(name).lower() in taken:
        number += 1
        name = stem.with_name(f"{stem.name}_{number}")
    taken.add(str(name).lower())
    return name


def written_before(stems: Iterable[Path]) -> list[Path]:
    """What is there already of outputs with these stems, in whatever format."""
    candidates = (stem.with_name(stem.name + extension) for stem in stems for extension in EXTENSIONS)
    return [path for path in candidates if path.exists()]


def refuse_to_replace(stem: Path, image_folders: Collection[str]) -> None:
    """Among the images, a file of the output's name may be someone's own mask: it is never replaced."""
    if os.path.realpath(stem.parent) not in image_folders:
        return
    for path in written_before([stem]):
        raise UnreadableError(f"{path} already exists, among the images: choose another --out")


def write_labels(stem: Path, labels: Mask, scan: Scan, classes: Sequence[str]) -> Path:
    """Write a mask of classes in its scan's own format and place."""
    values = mask_values(classes, is_picture=scan.geometry.kind == "picture")
    mask = np.array(values, dtype=np.uint8 if max(values) < 256 else np.uint16)[labels]
    if scan.geometry.kind == "picture" and len(mask) == 1 and max(values) < 256 and set(values) != {0, 255}:
        path = stem.with_name(f"{stem.name}.png")
        write_whole(path, _coloured_png(mask[0], values))
        return path
    return write_mask(stem, mask, scan)


def write_series_labels(stem: Path, labels: Mask, source: Path | Sequence[Path], classes: Sequence[str]) -> Path:
    """Write a mask of classes as a DICOM segmentation of its series."""
    return write_segmentation_object(stem, labels.astype(np.uint8), source, classes[1:])


def mask_values(classes: Sequence[str], is_picture: bool = False) -> list[int]:
    """What stands for each class: its own name if names are numbers, as the masks of training had them."""
    if all(name.isdecimal() and int(name) < 65536 for name in classes):
        return [int(name) for name in classes]
    if len(classes) == 2 and is_picture:
        return [0, 255]  # so that a person sees it
    return list(range(len(classes)))


def _coloured_png(mask: Mask, values: Sequence[int]) -> bytes:
    """A PNG that looks coloured and reads as labels: its palette gives each label a colour."""
    from PIL import Image

    palette = np.zeros((max(values) + 1, 3), dtype=np.uint8)
    for number, value in enumerate(values):
        palette[value] = (0, 0, 0) if number == 0 else (255, 255, 255) if len(values) == 2 else colour_of(number)
    image = Image.fromarray(mask)
    image.putpalette(palette.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write_table(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Write a CSV file, in UTF-8 whatever the bytes of a file's name: those that are not are written as \\udcXX."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    write_whole(path, buffer.getvalue().encode(errors="backslashreplace"))
