"""The images that a prediction is asked for: files, folders and patterns such as `*.png`."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harmofl.data.file_hashes import files_of
from harmofl.data.formats.content import SUFFIXES, is_dicom, is_readable
from harmofl.data.formats.dicom import is_placed, series_of
from harmofl.data.layouts.manifest import image_columns
from harmofl.data.layouts.tables import Table
from harmofl.errors import UsageError

MADE_FROM_AN_IMAGE = re.compile(r"(?P<stem>.+)[_-](segmentation|seg|mask|labels?|overlay)", re.IGNORECASE)
MASK_FOLDERS = ("masks", "labels", "segmentations", "annotations")
IMAGE_FOLDER = "images"
SYSTEM_FILES = ("dicomdir", "thumbs.db", "desktop.ini")
"""What a file system or a viewer put there, in lower case; nobody misses it, nor files whose names begin with a dot."""
SHOWN = 5
"""Names that a message has room for."""
NOT_READ = "not an image that can be read (PNG, JPEG, TIFF, SVS, NIfTI, DICOM, MHA, NRRD)"
NOT_AN_IMAGE_OF_ITS_OWN = "a mask or overlay of an image there; name the file to predict it"
BESIDE_IMAGES = "it lies beside a folder of images"


@dataclass(frozen=True)
class Input:
    """One picture, volume or DICOM series; `name` is what its user wrote or would write."""

    name: str
    path: Path
    """A file, or the folder of a series."""
    error: str = ""
    files: tuple[Path, ...] = ()
    """Of a DICOM series, or view, that is not all that its folder holds; `path` is the first of them."""
    left_out: str = ""
    """Why a file or folder that was met in a folder is not predicted."""
    more: tuple[Path, ...] = ()
    """The files, or folders of series, of further channels."""


def find_inputs(images: Iterable[str | Path], out: Path) -> list[Input]:
    """Everything that is meant, each once, in the order given, and then what was left out of folders.

    What lies below `out` is not taken for an image.
    """
    met = [each for named in images for each in _meant(str(named), out)]
    inputs = _once(_in_series([each for each in met if not each.left_out]))
    left_out = {
        place: each for place, each in _once(each for each in met if each.left_out).items() if place not in inputs
    }
    if all(each.error for each in inputs.values()):
        refused = [f"{each.name}: {each.error}" for each in inputs.values()]
        refused += [f"{each.name}: left out: {each.left_out}" for each in left_out.values()]
        more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        raise UsageError("; ".join(refused[:SHOWN]) + more if refused else "no images given")
    return [*inputs.values(), *left_out.values()]


def _once(inputs: Iterable[Input]) -> dict[str, Input]:
    """The first input of every place."""
    each_once: dict[str, Input] = {}
    for each in inputs:
        each_once.setdefault(os.path.realpath(each.path), each)
    return each_once


def stem_of(path: Path) -> str:
    """A name without the suffix of an image format; other names, such as a series' `IM.0001`, are kept whole."""
    lower = path.name.lower()
    ends = [suffix for suffix in SUFFIXES if lower.endswith(suffix) and lower != suffix]
    return path.name[: -max(map(len, ends))] if ends else path.name


def _in_series(inputs: Sequence[Input]) -> Iterator[Input]:
    """DICOM files that were named or matched one by one become series, folder by folder, as those of a folder do."""
    of_folder: dict[str, dict[str, Path]] = {}
    for each in inputs:
        if _is_slice(each):
            files = of_folder.setdefault(os.path.realpath(each.path.parent), {})
            files.setdefault(os.path.realpath(each.path), each.path)
    for each in inputs:
        if not _is_slice(each):
            yield each
        elif files := of_folder.pop(os.path.realpath(each.path.parent), {}):  # else they came with the first of them
            listed = sorted(files.values())
            yield from _dicom_inputs(each.path.parent, listed, named=True) if len(listed) > 1 else [each]


def _is_slice(each: Input) -> bool:
    return not (each.error or each.files or each.more) and each.path.is_file() and is_dicom(each.path)


def _meant(named: str, out: Path) -> Sequence[Input]:
    path = Path(named)
    if path.is_dir():
        return _or_error(list(_in_folder(path, out)), Input(named, path, "no images in this folder"))
    if path.suffix.lower() == ".csv" and path.is_file():
        return _or_error(list(_in_table(path)), Input(named, path, "names no image below its header"))
    if path.exists():
        return [Input(named, path)]
    if glob.has_magic(named):
        return _or_error(list(_matching(named, out)), Input(named, path, "no image matches this"))
    return [Input(named, path, "no such file")]


def _in_table(table: Path) -> Iterator[Input]:
    """The images of a table with a column `image`, or columns such as `image_t2` and `image_adc` for channels."""
    for line, values in _rows_of(table):
        paths = [
            table.parent / values[name].replace("\\", "/") for name in image_columns([*values])
        ]  # as training does
        missing = [f"no such file: {path}" for path in paths if path == table.parent or not path.exists()]
        error = f"line {line} of {table.name}: {missing[0]}" if missing else ""
        yield Input(str(paths[0]), paths[0], error, more=tuple(paths[1:]))


def sites_in(table: Path) -> list[str]:
    """The hospitals that a table of images names, in a column `site`."""
    return sorted({values.get("site", "") for _, values in _rows_of(table)} - {""})


def _rows_of(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The lines of a table of images, by their numbers; the last columns of a short line are empty."""
    read = Table(table.parent, table.name)
    delimiter = read.delimiter(lambda name: name == "image" or name.startswith("image_"))
    header = read.header(delimiter)
    read.require(image_columns(header), header)
    rows = read.rows(delimiter)
    next(rows)
    for line, row in rows:
        yield line, dict.fromkeys(header, "") | dict(zip(header, (value.strip() for value in row), strict=False))


def _or_error(inputs: list[Input], error: Input) -> list[Input]:
    """The same, with an error if all that was met is left out."""
    return [error, *inputs] if all(each.left_out for each in inputs) else inputs


def _matching(pattern: str, out: Path) -> Iterator[Input]:
    hits = [Path(hit) for hit in sorted(glob.glob(pattern, recursive=True))]
    if not _is_below(_fixed_part(pattern), out):  # then what lies there was made by an earlier prediction
        hits = [hit for hit in hits if not _is_below(hit, out)]
    folders = {hit for hit in hits if hit.is_dir()}
    for folder in sorted(folders):
        yield from _in_folder(folder, out)
    yield from _pictures([hit for hit in hits if hit not in folders and folders.isdisjoint(hit.parents)])


def _fixed_part(pattern: str) -> Path:
    """The folder above the first part that may match several names."""
    parts = Path(pattern).parts
    wild = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:wild])


def _in_folder(folder: Path, out: Path) -> Iterator[Input]:
    """The images of a folder and of those below it; DICOM files that lie together are one series."""
    entered = {os.path.realpath(folder)}  # links are followed, but not in circles
    closed: list[OSError] = []
    for place, folders, names in os.walk(folder, onerror=closed.append, followlinks=True):
        here = Path(place)
        new = [name for name in sorted(folders) if os.path.realpath(here / name) not in entered]
        visible = [name for name in new if not name.startswith(".") and not _is_same(here / name, out)]
        masks = [name for name in visible if _holds_masks(name, folders)]
        yield from (Input(str(here / name), here / name, left_out=BESIDE_IMAGES) for name in masks)
        folders[:] = [name for name in visible if name not in masks]
        entered.update(os.path.realpath(here / name) for name in folders)
        files = [here / name for name in sorted(names)]
        slices = {file: None for file in files if is_readable(file) and is_dicom(file)}
        if slices:
            yield from _dicom_inputs(here, list(slices))
        yield from _pictures([file for file in files if file not in slices], folders)
    for error in closed:
        yield Input(str(error.filename), Path(error.filename), left_out=f"cannot be read: {error.strerror}")


def _pictures(files: Sequence[Path], folders: Collection[str] = ()) -> Iterator[Input]:
    """Each file for itself; what is no image, or was made from one that lies there, is left out."""
    readable = {file for file in files if is_readable(file)}
    voxels = {each for file in readable for each in _beside(file)}
    images = {(file.parent, stem_of(file).lower()) for file in readable}
    images |= {(file.parent, name.lower()) for file in files[:1] for name in folders}
    for file in files:
        if file in readable:
            reason = NOT_AN_IMAGE_OF_ITS_OWN if _is_made_from(file, images) else ""
            yield Input(str(file), file, left_out=reason)
        elif not file.name.startswith(".") and file.name.lower() not in SYSTEM_FILES and file not in voxels:
            yield Input(str(file), file, left_out=NOT_READ)


def _beside(file: Path) -> list[Path]:
    """The file with the voxels of a header, which is no image of its own."""
    try:
        return files_of(file)[1:]
    except OSError:  # it will be said when the image is read
        return []


def _is_made_from(file: Path, images: Collection[tuple[Path, str]]) -> bool:
    """Whether a file is by its name the mask or overlay of one of the images."""
    match = MADE_FROM_AN_IMAGE.fullmatch(stem_of(file).lower())
    return match is not None and (file.parent, match["stem"]) in images


def _dicom_inputs(folder: Path, files: Sequence[Path], named: bool = False) -> Iterator[Input]:
    """One input for each series; files that are each a series of their own, such as X-rays, are several.

    Files of a series that do not say where they lie in the body are views, not slices, unless the series is all that
    the folder holds and they were not `named` one by one: then the folder is one input, as it is in training.
    """
    series: dict[str, list[Path]] = {}
    for file in files:
        series.setdefault(series_of(file), []).append(file)
    # What does not say to which series it belongs may be a part of any.
    is_one = len(series) == 1 or ("" in series and len(series) < len(files))
    if is_one and (is_placed(files[0]) or not named) and _is_all(folder, files):
        yield Input(str(folder), folder)
        return
    for members in series.values():
        is_volume = len(members) > 1 and is_placed(members[0])
        for group in [members] if is_volume else [[file] for file in members]:
            yield Input(str(group[0]), group[0], files=tuple(group))


def _is_all(folder: Path, files: Sequence[Path]) -> bool:
    """Whether the folder holds no other DICOM files."""
    return len(files) == sum(file.is_file() and is_readable(file) and is_dicom(file) for file in folder.iterdir())


def _is_same(folder: Path, other: Path) -> bool:
    return os.path.realpath(folder) == os.path.realpath(other)


def _holds_masks(name: str, beside: Sequence[str]) -> bool:
    """Whether a folder is one of masks by its name and by the folder of images beside it."""
    return name.lower() in MASK_FOLDERS and IMAGE_FOLDER in map(str.lower, beside)


def _is_below(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
