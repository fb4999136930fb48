"""What training would find in a folder: images per site and split, and every problem, each with its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from harmofl.data.checked_site import HELD_OUT, CheckedSite, Row
from harmofl.data.classes import Classes
from harmofl.data.folder import ImageFolder
from harmofl.data.inspection import find_problems
from harmofl.data.remarks import ALSO, remarks_on
from harmofl.data.samples import Problem
from harmofl.errors import UsageError
from harmofl.registry import Named


@dataclass(frozen=True)
class Check:
    """Everything that is worth knowing of a folder before training on it."""

    task: str
    folder: str
    kind: str
    sites: tuple[str, ...]
    """Those that take part in training."""
    classes: tuple[str, ...]
    channels: int | None
    """Of the network's input; None where the images do not agree on it."""
    limit: int | None
    """The most images of a site that the settings allow, if they do."""
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]
    """The fatal ones first, then images that are in two splits or sites, then the rest."""

    @property
    def ok(self) -> bool:
        """Whether training would accept the data."""
        return not any(problem.fatal for problem in self.problems)

    @property
    def images(self) -> int:
        """How many images take part in training, validation and test."""
        return sum(row.images for row in self.rows if row.split != HELD_OUT)


def check_images(task: Named, folder: ImageFolder) -> Check:
    """Look at everything in a task's folder."""
    problems = find_problems(folder)
    classes = _classes_of(folder)
    sites = {site: CheckedSite(folder, site, classes) for site in folder.all_sites}
    return Check(
        task=task.name,
        folder=str(folder.listing.folder),
        kind=folder.kind,
        sites=tuple(folder.sites),
        classes=classes.names if classes else (),
        channels=_channels_of(folder),
        limit=folder.data.limit,
        rows=tuple(row for site in sites.values() for row in site.rows),
        problems=_in_order({*problems, *remarks_on(folder, sites)}),
    )


def to_json(check: Check) -> dict[str, Any]:
    """Plain values for machines.

    ok: whether training would accept the data
    task, folder, kind: what was checked; kind is classification or segmentation
    sites, classes: lists of names; channels: of the network's input, or null
    limit: data.limit, the most images of a site that are drawn, or null
    images: how many take part in training, validation and test
    rows: per site and split (train, val, test, unassigned or held out) an object with the fields of `Row`;
          a pair is [smallest, largest], intensity is [minimum, mean, maximum], and null means not applicable
    problems: objects with file (may be empty), message, fatal, and site (empty where the layout does not tell it)
    """
    plain: dict[str, Any] = _with_lists({"ok": check.ok, "images": check.images} | asdict(check))
    return plain


def _with_lists(value: Any) -> Any:
    """The same with lists for tuples, as JSON would give it back."""
    if isinstance(value, dict):
        return {name: _with_lists(each) for name, each in value.items()}
    return [_with_lists(each) for each in value] if isinstance(value, list | tuple) else value


def _classes_of(folder: ImageFolder) -> Classes | None:
    try:
        return folder.classes
    except UsageError:  # among the problems
        return None


def _channels_of(folder: ImageFolder) -> int | None:
    try:
        return folder.channels
    except UsageError:  # among the problems
        return None


def _in_order(problems: set[Problem]) -> tuple[Problem, ...]:
    def rank(problem: Problem) -> tuple[Any, ...]:
        return not problem.fatal, not problem.message.startswith(ALSO), problem

    return tuple(sorted(problems, key=rank))
