"""One's own data: a folder with `manifest.csv`, one row an image.

Input: files that the column `image` names, relative to the folder, or folders that hold a DICOM series. In its place,
columns such as `image_t2` and `image_adc` name the files of one channel each.
Label: the class in `label` (classification), or a file in `mask` (segmentation).
Sites: the column `site`. `split` (train, val or test) and `patient` may be missing; other columns are ignored.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Literal

from harmofl.data.layouts.layout import Layout
from harmofl.data.layouts.signs import describe_missing, open_tree
from harmofl.data.layouts.site_names import name_refusal
from harmofl.data.layouts.tables import Table
from harmofl.data.layouts.tree import Tree, printable
from harmofl.data.samples import SPLITS, Listing, Problem, Sample, of_site
from harmofl.errors import UsageError

Kind = Literal["classification", "segmentation"]

NAME = "manifest.csv"
SIGNS = r"manifest\.csv"
TRUTH: dict[Kind, str] = {"classification": "label", "segmentation": "mask"}
OTHER: dict[Kind, Kind] = {"classification": "segmentation", "segmentation": "classification"}
EXAMPLE: dict[Kind, str] = {
    "classification": "site,split,patient,image,label\nhospital-1,train,p01,images/p01-1.png,tumor",
    "segmentation": "site,split,patient,image,mask\nhospital-1,train,p01,images/p01-1.png,masks/p01-1.png",
}
SYNONYMS = {"training": "train", "validation": "val", "valid": "val", "dev": "val", "testing": "test"}


@dataclass(frozen=True)
class Row:
    """One line of the table, its values by column."""

    line: int
    values: Mapping[str, str]
    cells: Sequence[str]
    """The values in which the name of a site tells that it has moved: it may well be a label or a patient's, too."""
    extra: bool = False
    """There are more values than columns."""
    images: tuple[str, ...] = ("image",)
    """The columns that name images, one a channel."""

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{NAME} line {self.line}"

    def names(self, sites: Iterable[str]) -> bool:
        """Whether one of the sites stands in it, in whatever column and between whatever delimiters."""
        text = _comma_separated(*self.cells)
        return any(_comma_separated(site) in text for site in sites)


def list_samples(folder: Path, kind: Kind) -> Listing:
    """List the images that the manifest names."""
    tree = open_tree(folder, NAME)
    if not os.path.isfile(folder / NAME):
        error = describe_missing(folder, NAME, SIGNS)
        end = "" if str(error).endswith("?") else "."
        raise UsageError(f"{error}{end} It should look like this:\n{EXAMPLE[kind]}")
    rows = list(_rows(Table(folder, NAME), kind))
    if not rows:
        raise UsageError(f"{folder / NAME}: names no image: there are no rows below its header")
    problems: list[Problem] = []
    first_rows: dict[str, tuple[int, Sample]] = {}
    read = [(row, *_sample(tree, row, TRUTH[kind])) for row in rows]
    folders = _folders_of(sample for _, sample, _ in read)
    for _, sample, wrong in read:
        if not wrong and sample.image in folders:
            wrong.append(f"image {printable(sample.image[:200])}: a folder that holds other images of the table")
    sites = {sample.site for _, sample, wrong in read if not wrong}
    for row, sample, wrong in read:
        if wrong:
            # One value too many moves the others: what stands under `site` may be none, and left out with its images.
            site = "" if row.names(sites - {sample.site}) else sample.site
            problems += of_site(site, [Problem(row.place, message) for message in wrong])
        else:
            line, before = first_rows.setdefault(sample.image, (row.line, sample))
            if before is not sample:
                problems += of_site(sample.site, [_repeated(row, sample, line, before)])
    samples = sorted((sample for _, sample in first_rows.values()), key=attrgetter("site", "image"))
    problems += _alike(sites)
    return Listing(tuple(samples), tuple(problems + tree.problems))


def _folders_of(samples: Iterable[Sample]) -> set[str]:
    """Every folder in which an image lies, however deep."""
    nearest = {posixpath.dirname(image) for sample in samples for image in sample.images}
    return {str(folder) for place in nearest for folder in PurePosixPath(place, "image").parents}


def _rows(table: Table, kind: Kind) -> Iterator[Row]:
    """Go through the rows below the header, whichever delimiter it uses."""
    known = {"site", "image", TRUTH[kind], "split", "patient"}
    delimiter = table.delimiter(known.__contains__)
    header = table.header(delimiter)
    images = image_columns(header)
    needed = ("site", *images, TRUTH[kind])
    known |= {*images}
    other = OTHER[kind]
    is_other = TRUTH[kind] not in header and TRUTH[other] in header
    table.require(needed, header, f"; a table with {TRUTH[other]} is for --task {other}" if is_other else "")
    table.require([name for name in ("split", "patient") if name in header], header)
    rows = table.rows(delimiter)
    next(rows)
    for line, row in rows:
        values = {name: value.strip() for name, value in zip(header, row, strict=False) if name in known}
        extra = any(value.strip() for value in row[len(header) :])
        free = () if extra else ("label", "patient")
        cells = [value for name, value in zip_longest(header, row, fillvalue="") if name not in free]
        yield Row(line, values, cells, extra, images)


def image_columns(header: Sequence[str]) -> tuple[str, ...]:
    """The columns that name images: `image`, or without it every `image_NAME`, one a channel.

    >>> image_columns(["site", "image_t2", "image_adc", "mask"])
    ('image_t2', 'image_adc')
    """
    of_channels = tuple(name for name in header if name.startswith("image_"))
    return ("image",) if "image" in header or not of_channels else of_channels


def _comma_separated(*values: str) -> str:
    """Values with a comma on both sides, which other delimiters become too."""
    return "".join(f",{value.strip()}" for each in values for value in re.split("[,;\t]", each)) + ","


def _sample(tree: Tree, row: Row, truth: str) -> tuple[Sample, list[str]]:
    """Make a sample of a row, and say everything that is wrong with it."""
    first, *others = row.images
    values = {name: row.values.get(name, "") for name in ("site", *row.images, truth, "split", "patient")}
    split = values["split"].lower()
    sample = Sample(
        site=values["site"],
        image=_plain(tree, values[first]),
        more_images="\n".join(_plain(tree, values[name]) for name in others),
        label=values.get("label", ""),
        mask=_plain(tree, values.get("mask", "")),
        patient=values["patient"],
        split=SYNONYMS.get(split, split),
    )
    wrong = [f"{name} is empty" for name in ("site", *row.images, truth) if not values[name]]
    if row.extra:
        wrong.append("more values than columns; a value that holds the delimiter must stand in quotes")
    return sample, wrong + _wrong_words(sample) + _wrong_paths(tree, sample)


def _wrong_words(sample: Sample) -> list[str]:
    wrong = [refused] if (refused := name_refusal(sample.site)) else []
    if sample.split not in ("", *SPLITS):
        wrong.append(f"split must be {', '.join(SPLITS)} or empty, found {sample.split[:40]!r}")
    for name in ("label", "patient"):
        if not getattr(sample, name).isprintable():
            wrong.append(f"{name} holds characters that cannot be printed")
    return wrong


def _wrong_paths(tree: Tree, sample: Sample) -> list[str]:
    reasons = {
        **{f"image {each}": each and _path_refusal(tree, each, folder_allowed=True) for each in sample.images},
        f"mask {sample.mask}": sample.mask and _path_refusal(tree, sample.mask, folder_allowed=False),
    }
    wrong = [f"{printable(path[:200])}: {reason}" for path, reason in reasons.items() if reason]
    return [*wrong, "the mask is the image itself"] if sample.mask and sample.mask in sample.images else wrong


def _plain(tree: Tree, path: str) -> str:
    """Return a path with forward slashes and without detours, so that a file has one spelling; .. stays.

    An absolute path that lies in the data folder becomes relative to it.
    """
    path = path.replace("\\", "/")
    if not path or ".." in path.split("/"):
        return path
    path = posixpath.normpath(path)
    for root in (os.path.abspath(tree.root), os.path.realpath(tree.root)):
        if path.startswith(f"{root.replace(os.sep, '/').rstrip('/')}/"):
            return path[len(root.rstrip(os.sep)) + 1 :]
    return path


def _path_refusal(tree: Tree, path: str, folder_allowed: bool) -> str:
    if path.startswith("/") or path[1:2] == ":" or ".." in path.split("/"):  # C: is a drive of Windows
        return "the path leaves the data folder; paths are relative to it"
    if path == ".":
        return "the data folder itself"
    return tree.refusal(path, folder_allowed)


def _repeated(row: Row, sample: Sample, line: int, before: Sample) -> Problem:
    """Say that an image is listed again, and whether that does harm."""
    names = [field.name for field in fields(Sample) if getattr(sample, field.name) != getattr(before, field.name)]
    if not names:
        return Problem(row.place, f"image {sample.image} is already on line {line}", fatal=False)
    return Problem(row.place, f"image {sample.image} is already on line {line}, with another {' and '.join(names)}")


def _alike(sites: set[str]) -> list[Problem]:
    """Mention sites that differ in case only: probably one site, and one folder on some systems."""
    by_plain_name: dict[str, list[str]] = {}
    for site in sorted(sites):
        by_plain_name.setdefault(site.casefold(), []).append(site)
    return [
        Problem(NAME, f"the sites {' and '.join(names)} differ in case only; are they one?", fatal=False)
        for names in by_plain_name.values()
        if len(names) > 1
    ]


layouts: Mapping[Kind, Layout] = {kind: Layout(partial(list_samples, kind=kind), NAME, SIGNS) for kind in TRUTH}
"""By what the images are for."""
