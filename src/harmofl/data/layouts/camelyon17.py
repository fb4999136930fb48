"""Camelyon17 patches as WILDS lays them out: is there tumor in this piece of a lymph node?

Input: 96×96 RGB patches of breast cancer patients' lymph nodes, `patches/patient_PPP_node_N/….png`.
Label: tumor in the central 32×32 pixels or not, `tumor` in `metadata.csv`.
Sites: the five Dutch hospitals, `center`. Its `split` is WILDS' own (whole hospitals) and not used here.
Licence: CC0. From https://wilds.stanford.edu (`camelyon17_v1.0`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from sys import intern
from typing import Any

from harmofl.data.layouts.layout import Layout
from harmofl.data.layouts.signs import describe_missing, open_tree
from harmofl.data.layouts.tables import Table
from harmofl.data.layouts.tree import join, read_folder
from harmofl.data.samples import Listing, Problem, Sample, inside, of_site
from harmofl.errors import UsageError

WANTED = "Camelyon17 in WILDS' layout, metadata.csv beside patches/ (or in camelyon17_v1.0/)"
TABLE, PATCHES = "metadata.csv", "patches"
COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")
LABELS = ("normal", "tumor")
SIGNS = r"metadata\.csv|camelyon17_v.*"
SAID_ONE_BY_ONE = 20
"""Missing files of one patient folder; more are said in one sentence."""

Patches = dict[str, Sample]
"""The samples of one patient folder by file name."""


def _base(folder: Path) -> str:
    """Where metadata.csv lies: the folder itself, or the one that WILDS makes in it."""
    tree = open_tree(folder, WANTED)
    versions = sorted((name for name in tree.folders("") if name.startswith("camelyon17_v")), reverse=True)
    base = next((base for base in ("", *versions) if os.path.isfile(folder / base / TABLE)), None)
    if base is None:
        raise describe_missing(folder, WANTED, SIGNS)
    if not os.path.isdir(folder / base / PATCHES):
        raise UsageError(f"{folder / base}: {TABLE} is there, but no folder {PATCHES} beside it")
    refused = inside(folder, join(base, PATCHES))
    if refused:
        raise UsageError(f"{folder / base / PATCHES}: {refused}")
    return base


def stamp(folder: Path) -> dict[str, Any]:
    """What changes whenever the listing would."""
    base = _base(folder)
    table = (folder / base / TABLE).stat()
    try:
        with os.scandir(folder / base / PATCHES) as entries:
            changed = {entry.name: entry.stat().st_mtime_ns for entry in entries if entry.is_dir()}
    except OSError as error:
        raise UsageError(f"{folder / base / PATCHES}: cannot be read ({error.strerror})") from None
    return {
        "version": 2,
        "folder": str(folder.resolve()),
        TABLE: [table.st_size, table.st_mtime_ns],
        PATCHES: dict(sorted(changed.items())),
    }


def list_samples(folder: Path) -> Listing:
    """List the patches that metadata.csv names and that are there."""
    base = _base(folder)
    patients, problems = _read_table(Table(folder, join(base, TABLE)), base)
    samples: list[Sample] = []
    for name in sorted(patients):
        there, wrong = _those_there(folder, name, patients[name])
        samples += there
        sites = {sample.site for sample in patients[name].values()}
        problems += of_site(sites.pop() if len(sites) == 1 else "", wrong)
    if not samples and not any(problem.fatal for problem in problems):
        raise describe_missing(folder, f"patch that {join(base, TABLE)} lists", SIGNS)
    samples.sort(key=attrgetter("site", "image"))
    return Listing(tuple(samples), tuple(problems))


def _read_table(table: Table, base: str) -> tuple[dict[str, Patches], list[Problem]]:
    """Return the samples of each patient folder, whether they are there or not."""
    patients: dict[str, Patches] = {}
    problems: list[Problem] = []
    for line, values in _values(table):
        place = f"{join(base, TABLE)} line {line}"
        sample = _sample(base, values)
        if isinstance(sample, str):
            problems.append(Problem(place, sample))
            continue
        parent, _, name = sample.image.rpartition("/")
        before = patients.setdefault(parent, {}).setdefault(name, sample)
        if before is not sample:
            agrees = "repeats" if before == sample else "contradicts"
            problems.append(Problem(place, f"{agrees} an earlier row about {name}", fatal=before != sample))
    return patients, problems


def _values(table: Table) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Go through the rows' values in the order of COLUMNS; none of a row that is too short."""
    header = table.header()
    table.require(COLUMNS, header)
    positions = [header.index(name) for name in COLUMNS]
    pick, shortest = itemgetter(*positions), max(positions) + 1
    rows = table.rows()
    next(rows)
    for line, row in rows:
        yield line, pick(row) if len(row) >= shortest else ()


def _sample(base: str, values: tuple[str, ...]) -> Sample | str:
    """Make a sample of a row, or say what is wrong with it."""
    if not values:
        return "the row is too short"
    for name, value in zip(COLUMNS, values, strict=True):
        if not (value.isascii() and value.strip().isdigit() and len(value) < 20):
            return f"{name} must be a whole number, found {value[:40]!r}"
    patient, node, x, y, tumor, center = map(int, values)
    if tumor >= len(LABELS):
        return f"tumor must be 0 or 1, found {tumor}"
    owner = f"patient_{patient:03d}_node_{node}"
    image = join(base, f"{PATCHES}/{owner}/patch_{owner}_x_{x}_y_{y}.png")
    # interned: half a million samples share a few sites and patients
    return Sample(intern(f"center-{center}"), image, LABELS[tumor], patient=intern(str(patient)))


def _those_there(folder: Path, parent: str, patches: Patches) -> tuple[list[Sample], list[Problem]]:
    """Return the samples of one patient folder whose files are there."""
    path = folder / parent
    if not os.path.lexists(path):
        sites = " and ".join(sorted({sample.site for sample in patches.values()}))
        left_out = f"not there: its {len(patches)} patches ({sites}) are left out"
        return [], [Problem(parent, left_out, fatal=False)]  # many download some of the hospitals only
    if refused := inside(folder, parent):
        return [], [Problem(parent, refused)]
    try:
        contents = read_folder(path)
    except OSError as error:
        return [], [Problem(parent, f"cannot be read ({error.strerror})")]
    missing = sorted(patches.keys() - contents.keys())
    unusual = sorted(name for name in patches.keys() & contents.keys() if contents[name] != "file")
    reasons = {name: reason for name in unusual if (reason := _refusal(folder, parent, name))}
    there = [sample for name, sample in patches.items() if name in contents and name not in reasons]
    problems = [Problem(f"{parent}/{name}", reason) for name, reason in reasons.items()]
    return there, _say_missing(parent, missing, len(patches)) + problems


def _refusal(folder: Path, parent: str, name: str) -> str:
    return inside(folder, f"{parent}/{name}") or (
        "" if os.path.isfile(folder / parent / name) else "not a regular file"
    )


def _say_missing(parent: str, missing: Sequence[str], total: int) -> list[Problem]:
    if len(missing) <= SAID_ONE_BY_ONE:
        return [Problem(f"{parent}/{name}", f"listed in {TABLE} but not there") for name in missing]
    return [
        Problem(parent, f"{len(missing)} of {total} patches listed in {TABLE} are missing, the first: {missing[0]}")
    ]


layout = Layout(list_samples, WANTED, SIGNS, stamp)
