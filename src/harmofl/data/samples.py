"""What a layout finds in a folder: samples, and the problems that it met on the way."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

SPLITS = ("train", "val", "test")
POOLED = "pooled"
"""The name of the one training site that holds all images."""


@dataclass(frozen=True)
class Sample:
    """One picture or volume as it lies in a folder, with its class or its mask.

    Paths are relative to the folder, with forward slashes. Nothing is opened to make a sample.
    """

    site: str
    image: str
    """A file, or a folder that holds a DICOM series."""
    label: str = ""
    """The class's name, in classification."""
    mask: str = ""
    """A file of labels of the image's size, or of outlines (.xml), in segmentation."""
    patient: str = ""
    """Empty where the data does not say."""
    split: str = ""
    """train, val or test; empty where the data does not say."""
    reversed_channels: bool = False
    """Red and blue are swapped in the file."""
    more_images: str = ""
    """Files of further channels, one a line."""

    @property
    def images(self) -> tuple[str, ...]:
        """The files of all channels, the first of which stands for the sample."""
        return (self.image, *filter(None, self.more_images.split("\n")))

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of it, the mask last."""
        return (*self.images, *filter(None, [self.mask]))


@dataclass(frozen=True)
class Problem:
    """Something wrong with one file; with a fatal one, training is refused."""

    file: str
    message: str
    fatal: bool = True
    site: str = field(default="", compare=False)
    """Whose file it is, where the layout can tell; without that site, the problem does not count."""

    def __str__(self) -> str:
        return f"{self.file}: {self.message}" if self.file else self.message

    def __lt__(self, other: Problem) -> bool:
        return (natural(self.file), self.message) < (natural(other.file), other.message)


def natural(name: str) -> list[tuple[bool, int, str]]:
    """For sorting: line 9 comes before line 10."""
    parts = chain.from_iterable(re.findall(r"(\d+)|(\D+)", name))
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts if part]


def of_site(site: str, problems: Iterable[Problem]) -> list[Problem]:
    """The same problems, as those of one site."""
    return [replace(problem, site=site) for problem in problems]


@dataclass(frozen=True)
class Listing:
    """Everything that a layout found, in a stable order."""

    samples: tuple[Sample, ...]
    problems: tuple[Problem, ...] = ()


def inside(folder: Path, path: str) -> str:
    """Say why a path cannot be used; empty if it names something that lies in the folder, links followed."""
    if not path:
        return "no path"
    if Path(path).is_absolute() or ".." in Path(path).parts:
        return "the path leaves the data folder"
    try:
        target = (folder / path).resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a link to itself
        return "no such file"
    return "" if target.is_relative_to(folder.resolve()) else "the path leaves the data folder"
