"""The images that a prediction is asked for: files, folders and patterns such as `*.png`."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harmofl.data.formats.content import SUFFIXES, is_dicom, is_readable
from harmofl.data.formats.dicom import is_placed, series_of
from harmofl.errors import UsageError

log = logging.getLogger(__name__)

MADE_FROM_AN_IMAGE = re.compile(r"(?P<stem>.+)[_-](segmentation|seg|mask|labels?|overlay)", re.IGNORECASE)
MASK_FOLDERS = ("masks", "labels", "segmentations", "annotations")
IMAGE_FOLDER = "images"


@dataclass(frozen=True)
class Input:
    """One picture, volume or DICOM series; `name` is what its user wrote or would write."""

    name: str
    path: Path
    """A file, or the folder of a series."""
    error: str = ""
    files: tuple[Path, ...] = ()
    """Of a DICOM series, or view, that is not all that its folder holds; `path` is the first of them."""


def find_inputs(images: Iterable[str | Path], out: Path) -> list[Input]:
    """Everything that is meant, each once, in the order given; what lies below `out` is not taken for an image."""
    found: dict[str, Input] = {}
    for each in _in_series([each for named in images for each in _meant(str(named), out)]):
        found.setdefault(os.path.realpath(each.path), each)
    inputs = list(found.values())
    if all(each.error for each in inputs):
        raise UsageError("; ".join(f"{each.name}: {each.error}" for each in inputs[:5]) or "no images given")
    return inputs


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
    return not each.error and not each.files and each.path.is_file() and is_dicom(each.path)


def _meant(named: str, out: Path) -> Sequence[Input]:
    path = Path(named)
    if path.is_dir():
        inputs = list(_in_folder(path, out))
        return inputs or [Input(named, path, "no images in this folder")]
    if path.exists():
        return [Input(named, path)]
    if glob.has_magic(named):
        return list(_matching(named, out)) or [Input(named, path, "no image matches this")]
    return [Input(named, path, "no such file")]


def _matching(pattern: str, out: Path) -> Iterator[Input]:
    hits = [Path(hit) for hit in sorted(glob.glob(pattern, recursive=True))]
    if not _is_below(_fixed_part(pattern), out):  # then what lies there was made by an earlier prediction
        hits = [hit for hit in hits if not _is_below(hit, out)]
    folders = {hit for hit in hits if hit.is_dir()}
    for folder in sorted(folders):
        yield from _in_folder(folder, out)
    files = [hit for hit in hits if hit not in folders and folders.isdisjoint(hit.parents) and is_readable(hit)]
    yield from (Input(str(file), file) for file in _without_masks(files))


def _fixed_part(pattern: str) -> Path:
    """The folder above the first part that may match several names."""
    parts = Path(pattern).parts
    wild = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:wild])


def _in_folder(folder: Path, out: Path) -> Iterator[Input]:
    """The images of a folder and of those below it; DICOM files that lie together are one series."""
    entered = {os.path.realpath(folder)}  # links are followed, but not in circles
    for place, folders, names in os.walk(folder, onerror=_mention, followlinks=True):
        here = Path(place)
        new = [name for name in sorted(folders) if os.path.realpath(here / name) not in entered]
        folders[:] = [name for name in new if _is_entered(here / name, folders, out)]
        entered.update(os.path.realpath(here / name) for name in folders)
        files = [here / name for name in sorted(names) if is_readable(here / name)]
        slices = {file for file in files if is_dicom(file)}
        if slices:
            yield from _dicom_inputs(here, sorted(slices))
        images = [file for file in files if file not in slices]
        yield from (Input(str(file), file) for file in _without_masks(images, folders))


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


def _mention(error: OSError) -> None:
    log.warning("%s: cannot be read: %s", error.filename, error.strerror)


def _is_entered(folder: Path, beside: Sequence[str], out: Path) -> bool:
    if folder.name.startswith(".") or os.path.realpath(folder) == os.path.realpath(out):
        return False
    is_mask = folder.name.lower() in MASK_FOLDERS and IMAGE_FOLDER in map(str.lower, beside)
    if is_mask:
        log.warning("%s: left out, as it lies beside a folder of images", folder)
    return not is_mask


def _without_masks(files: Sequence[Path], folders: Collection[str] = ()) -> list[Path]:
    """Leave out masks and overlays that lie beside the image that they belong to."""
    images = {(file.parent, stem_of(file).lower()) for file in files}
    if files:
        images |= {(files[0].parent, name.lower()) for name in folders}

    def is_made(file: Path) -> bool:
        match = MADE_FROM_AN_IMAGE.fullmatch(stem_of(file).lower())
        return match is not None and (file.parent, match["stem"]) in images

    kept = [file for file in files if not is_made(file)]
    if len(kept) < len(files):
        count = len(files) - len(kept)
        what = "1 mask or overlay" if count == 1 else f"{count} masks or overlays"
        log.warning("%s: left out %s of other images there; name a file to predict it", files[0].parent, what)
    return kept


def _is_below(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
