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
from harmofl.data.formats.dicom import series_of
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
    error: str = ""


def find_inputs(images: Iterable[str | Path], out: Path) -> list[Input]:
    """Everything that is meant, each once, in the order given; what lies below `out` is not taken for an image."""
    found: dict[str, Input] = {}
    for named in images:
        for each in _meant(str(named), out):
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
    for place, folders, names in os.walk(folder, onerror=_mention):
        here = Path(place)
        folders[:] = sorted(name for name in folders if _is_entered(here / name, folders, out))
        files = [here / name for name in sorted(names) if is_readable(here / name)]
        slices = {file for file in files if is_dicom(file)}
        if slices:
            yield from _dicom_inputs(here, sorted(slices))
        images = [file for file in files if file not in slices]
        yield from (Input(str(file), file) for file in _without_masks(images, folders))


def _dicom_inputs(folder: Path, files: Sequence[Path]) -> Iterator[Input]:
    """A folder with a series is one input; files that are each a series of their own, such as X-rays, are several."""
    if len(files) > 1 and len(set(map(series_of, files))) == len(files):
        yield from (Input(str(file), file) for file in files)
    else:
        yield Input(str(folder), folder)


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
