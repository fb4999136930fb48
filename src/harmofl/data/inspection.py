"""Every problem of a folder on which training or scoring would fail, and the warnings that all commands show."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from harmofl.data.classes import Classes
from harmofl.data.decoding import DecodedSite
from harmofl.data.folder import ImageFolder
from harmofl.data.problem_kinds import group_by_kind, summarize
from harmofl.data.samples import Problem, Sample
from harmofl.errors import UsageError

SHOWN = 5
"""Kinds of problems, or labels, that a message names."""

log = logging.getLogger(__name__)


def check_for_training(folder: ImageFolder) -> None:
    """Decode what is not in the cache yet; raise an error for data on which training would fail."""
    _refuse(folder, find_problems(folder))
    warn_of_other_grids(folder)


def check_for_scoring(folder: ImageFolder) -> None:
    """The same for images that are only to be scored, however few there are of a site."""
    _refuse(folder, find_image_problems(folder))
    warn_of_other_grids(folder)


def find_problems(folder: ImageFolder) -> list[Problem]:
    """Look at everything, and list every problem on which training would fail."""
    return [*find_image_problems(folder), *_find_division_problems(folder)]


def find_image_problems(folder: ImageFolder) -> list[Problem]:
    """Decode every image and mask that is not in the cache yet, and list those that cannot be used."""
    decoded = [folder.decoded(site) for site in folder.all_sites]
    problems = [*folder.listing.problems, *(problem for each in decoded for problem in each.problems)]
    try:
        classes, _ = folder.classes, folder.channels
    except UsageError as error:  # classes or channels that do not go together
        return [*problems, Problem("", str(error))]
    return [*problems, *(problem for each in decoded for problem in _find_unknown_classes(each, classes))]


def _find_unknown_classes(decoded: DecodedSite, classes: Classes) -> Iterator[Problem]:
    allowed, entry = ", ".join(classes.names), decoded.entry
    for number, sample in enumerate(decoded.samples):
        if not sample.mask and classes.index(sample.label) < 0:
            yield Problem(sample.image, f"label {sample.label!r} is none of the classes ({allowed})")
        elif sample.mask and entry and (unknown := classes.unknown(entry.values[number])):
            values = ", ".join(map(str, unknown[:SHOWN]))
            yield Problem(sample.mask, f"label {values} is none of the classes ({allowed})")


def _find_division_problems(folder: ImageFolder) -> Iterator[Problem]:
    if folder.data.split_by == "patient":
        for site in folder.all_sites:
            yield from find_patients_on_two_sides(folder.decoded(site).samples)
    if not folder.sites:
        yield Problem("", "no site is left to train on")
    for site in folder.sites:
        decoded = folder.decoded(site)
        if decoded.entry is not None and decoded.is_complete:  # else what it lacks may be what could not be read
            yield from _try_to_split(folder, site)


def _try_to_split(folder: ImageFolder, site: str) -> Iterator[Problem]:
    try:
        train, _, _ = folder.parts(site)
    except UsageError as error:
        yield Problem("", str(error))
        return
    if len(train) < 2:
        yield Problem("", f"{site}: {len(train)} training image; it takes 2 or more")


def find_patients_on_two_sides(samples: Iterable[Sample]) -> Iterator[Problem]:
    """Patients whose images the data puts into more than one of train, val and test."""
    first: dict[str, Sample] = {}
    named = set()
    for sample in samples:
        if not (sample.patient and sample.split):
            continue
        before = first.setdefault(sample.patient, sample)
        if before.split != sample.split and sample.patient not in named:
            named.add(sample.patient)
            where = f"in {sample.split}, but {before.image} of the same patient is in {before.split}"
            hint = "data.split_by = 'image' allows that"
            yield Problem(sample.image, f"patient {sample.patient} of {sample.site} is {where} ({hint})")


def _refuse(folder: ImageFolder, problems: Sequence[Problem]) -> None:
    """Raise if there is any problem that training would fail on."""
    fatal = sorted({problem for problem in problems if problem.fatal})
    if fatal:
        count = f"{len(fatal)} problem{'s' if len(fatal) > 1 else ''}"
        listed = summarize(fatal, SHOWN)
        raise UsageError(f"{folder.listing.folder}: {count}: {listed} (`harmofl data check` says more)")


def warn_of_other_grids(folder: ImageFolder) -> None:
    """Warn of masks that may not lie on their images: nothing else would show it."""
    notes = [each for site in folder.all_sites for each in folder.decoded(site).remarks()]
    for group in group_by_kind(remark for note, remark in notes if note.about == "grid"):
        others = len(group.problems) - 1
        log.warning("%s%s", group.problems[0], f" (and {others} more like it)" if others else "")
