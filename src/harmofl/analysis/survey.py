"""What a hospital tells of its images before training: numbers and averages of many images, never of one.

A survey is made where the images are. The same function serves a folder with all hospitals, synthetic hospitals, and a
hospital in a federation, where only the survey travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from harmofl.analysis.appearance import RINGS, log_amplitudes, ring_means, statistics
from harmofl.data.images import ImageSet, LabelledImages, seed_of
from harmofl.data.listing import draw_places
from harmofl.errors import STRICT

MOST_IMAGES = 500
"""Of a hospital, drawn at random: more of them change nothing that can be seen."""
BINS = 32
"""Of a histogram of intensities from 0 to 1."""
LEVELS = (0.005, 0.1, 0.5, 0.9, 0.995)
"""Of the percentiles of intensities."""
MOST_NUMBERS = 128
"""In a description of one image: three channels have 48."""
SMALLEST_HALF = 2
"""Images of half of the patients, without which nothing can be said about how they vary."""
SHARED = 3
"""Images that must have a number in common before it is told as it is; the same wherever a survey is made."""
DIGITS = 6

LONGEST_NAME = 100


def check_plain(text: str) -> str:
    """Words of another machine stand in tables and terminals: no control characters."""
    if not text.isprintable():
        raise ValueError("printable text")
    return text


Words = Annotated[str, Field(max_length=300), AfterValidator(check_plain)]
Name = Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(check_plain)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Lengths = Annotated[list[Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]], Field(min_length=2, max_length=3)]


class Part(BaseModel):
    """Strict about names and types, as it may come from another machine."""

    model_config = ConfigDict(frozen=True, **STRICT)


class Moments(Part):
    """Of the descriptions of half of a hospital's patients: what a linear probe needs."""

    images: Count
    mean: list[Finite] = Field(max_length=MOST_NUMBERS)
    covariance: list[list[Finite]] = Field(max_length=MOST_NUMBERS)

    @model_validator(mode="after")
    def _is_square(self) -> Moments:
        lengths = {len(self.covariance), *map(len, self.covariance)}
        if lengths != {len(self.mean)}:
            raise ValueError("a covariance as wide and high as the mean is long")
        return self


class Survey(Part):
    """What one hospital tells. Lengths are of slices, rows and columns of volumes, of rows and columns of images."""

    images: Count
    """Training images: pictures, tiles, slices or volumes."""
    patients: Count
    others: Count = 0
    """Validation and test images, of which nothing else is told."""
    hidden: Words = ""
    """Why there is nothing else."""
    balance: dict[Name, Share] = Field({}, max_length=1024)
    """The share of images of each class; in segmentation, of pixels of each class but background."""
    empty: Share | None = None
    """The share of images without anything in their mask."""
    object_size: Lengths | None = None
    """The median size of a box around all that is in a mask, in pixels or voxels. Of each median, see `middle`."""
    size: Lengths | None = None
    """The median size of an original image, in pixels or voxels."""
    smallest: Lengths | None = None
    largest: Lengths | None = None
    """The 10th and the 90th percentile of the sizes."""
    spacing: Lengths | None = None
    """The median distance between voxels, in millimetres, where files say so."""
    finest: Lengths | None = None
    """The 10th percentile of it."""
    original: list[Finite] = Field([], max_length=3)
    """The medians of the original images' lowest, mean and highest values."""
    percentiles: list[Share] = Field([], max_length=len(LEVELS))
    """Of the intensities that become the network's input, at LEVELS."""
    histogram: list[Share] = Field([], max_length=BINS)
    spectrum: list[Finite] = Field([], max_length=RINGS)
    """The mean decimal logarithm of amplitudes, in rings of the spectrum from coarse to fine."""
    halves: list[Moments] = Field([], max_length=2)

    @property
    def is_open(self) -> bool:
        """Whether it tells more than numbers of images."""
        return len(self.halves) == 2

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return self.model_dump(mode="json", exclude_none=True)


def read_survey(values: Any) -> Survey | None:
    """A survey from plain values of another machine; None if it is not one."""
    try:
        return Survey.model_validate(values)
    except ValidationError:
        return None


@dataclass(frozen=True)
class Originals:
    """What the files were like, where there are files: one number for each image."""

    sizes: Tensor | None = None
    """(N, 2 or 3)."""
    spacings: Tensor | None = None
    """(N, 3), only those that files tell."""
    values: Tensor | None = None
    """(N, 3): lowest, mean and highest value."""


@dataclass
class _Seen:
    """What is gathered while images pass."""

    described: list[Tensor] = field(default_factory=list)
    histogram: Tensor = field(default_factory=lambda: torch.zeros(BINS, dtype=torch.float64))
    spectra: list[Tensor] = field(default_factory=list)
    pixels: Tensor | None = None
    """(classes,) of all masks."""
    masks_with: Tensor | None = None
    """(classes,) how many masks hold each."""
    boxes: list[Tensor] = field(default_factory=list)
    num_masks: int = 0
    sizes: list[Tensor] = field(default_factory=list)
    spacings: list[Tensor] = field(default_factory=list)

    def add(self, batch: LabelledImages, colours: bool, num_classes: int) -> None:
        """Look at some images."""
        slices = as_slices(batch.images, colours)
        rows = statistics(slices).view(len(batch), -1, slices.shape[1] * (8 + RINGS)).mean(1)
        self.described.append(rows)
        self.histogram += torch.histc(slices.double(), BINS, 0, 1)
        self.spectra.append(ring_means(log_amplitudes(slices), RINGS).mean(dim=(0, 1)) * len(batch))
        self.sizes.append(torch.tensor(batch.images.shape[2:]).expand(len(batch), -1))
        spacings = getattr(batch, "spacings", None)
        if spacings is not None:
            self.spacings.append(spacings)
        if batch.targets.ndim > 1:
            self._add_masks(batch.targets, num_classes)

    def _add_masks(self, masks: Tensor, num_classes: int) -> None:
        counts = torch.stack([torch.bincount(mask.flatten(), minlength=num_classes) for mask in masks])
        pixels, masks_with = counts.sum(0).double(), (counts > 0).sum(0)
        self.pixels = pixels if self.pixels is None else self.pixels + pixels
        self.masks_with = masks_with if self.masks_with is None else self.masks_with + masks_with
        self.num_masks += len(masks)
        self.boxes += [box for mask in masks if (box := _box(mask)) is not None]


def as_slices(images: Tensor, colours: bool) -> Tensor:
    """What is described: images (N, C, H, W); of volumes their slices, of neighbouring slices the middle one."""
    if images.ndim == 5:
        return images.movedim(2, 1).flatten(0, 1)
    return images if colours else images[:, images.shape[1] // 2][:, None]


def _box(mask: Tensor) -> Tensor | None:
    places = mask.nonzero()
    return (places.amax(0) - places.amin(0) + 1).double() if len(places) else None


@dataclass(frozen=True)
class Surveyed:
    """The images of one hospital that a survey is about, and how to look at them."""

    train: ImageSet
    others: int
    patients: int
    classes: Sequence[str]
    colours: bool
    fewest: int
    """With fewer training images, or fewer of a class, nothing is told that they could be recognized by."""
    seed: int = 0
    originals: Originals = Originals()


def survey_site(site: str, surveyed: Surveyed, batch_size: int = 16) -> Survey:
    """Look at a hospital's training images and tell what they are like.

    Args:
        site: The hospital's name, which decides which of many images are looked at.
        surveyed: Its images.
        batch_size: How many are in memory at once.
    """
    train, fewest = surveyed.train, surveyed.fewest
    counted = Survey(images=len(train), patients=surveyed.patients, others=surveyed.others)
    if len(train) < max(SMALLEST_HALF, fewest):
        return counted.model_copy(update={"hidden": f"fewer than {max(SMALLEST_HALF, fewest)} training images"})
    places = draw_places(len(train), min(len(train), MOST_IMAGES), surveyed.seed, site)
    images, seen = train.at(places), _Seen()
    for batch in images.batches(batch_size):
        seen.add(batch, surveyed.colours, len(surveyed.classes))
    told = counted.model_dump() | _looks(seen) | _truth(seen, surveyed) | _sizes(seen, surveyed)
    halves = _halves(torch.cat(seen.described), images.groups, seed_of(surveyed.seed, site, "halves"))
    smallest = max(SMALLEST_HALF, fewest // 2)
    if any(half.images < smallest for half in halves):
        halves = []
        told["hidden"] = f"half of its patients have fewer than {smallest} images"
    return Survey.model_validate(told | {"halves": [half.model_dump() for half in halves]})


def _looks(seen: _Seen) -> dict[str, Any]:
    shares = seen.histogram / seen.histogram.sum().clamp_min(1)
    cumulated = shares.cumsum(0)
    levels = [float((cumulated < level).sum() + 0.5) / BINS for level in LEVELS]
    count = sum(len(rows) for rows in seen.described)
    spectrum = torch.stack(seen.spectra).sum(0) / count
    return {"histogram": rounded(shares), "percentiles": levels, "spectrum": rounded(spectrum)}


def _truth(seen: _Seen, surveyed: Surveyed) -> dict[str, Any]:
    """Class balance; none where a class has so few images that they could be singled out."""
    labels = surveyed.train.labels
    if labels is not None:
        counts = torch.bincount(labels, minlength=len(surveyed.classes))
        if _has_few(counts, surveyed.fewest):
            return {}
        return {"balance": dict(zip(surveyed.classes, rounded(counts / counts.sum()), strict=True))}
    if seen.pixels is None or seen.masks_with is None or _has_few(seen.masks_with[1:], surveyed.fewest):
        return {}
    shares = rounded(seen.pixels / seen.pixels.sum())
    filled = len(seen.boxes)
    told: dict[str, Any] = {
        "balance": dict(zip(surveyed.classes[1:], shares[1:], strict=True)),
        "empty": round(1 - filled / seen.num_masks, DIGITS),
    }
    return told | ({"object_size": middle(torch.stack(seen.boxes), 0.5)} if filled >= surveyed.fewest else {})


def _has_few(counts: Tensor, fewest: int) -> bool:
    """Whether a class occurs, but in few images."""
    return bool(((counts > 0) & (counts < fewest)).any())


def _sizes(seen: _Seen, surveyed: Surveyed) -> dict[str, Any]:
    originals = surveyed.originals
    sizes = torch.cat(seen.sizes).double() if originals.sizes is None else originals.sizes
    levels = (("smallest", 0.1), ("size", 0.5), ("largest", 0.9))
    told = {name: middle(sizes, level) for name, level in levels}
    spacings = torch.cat(seen.spacings) if originals.spacings is None and seen.spacings else originals.spacings
    if spacings is not None and len(spacings) >= max(1, surveyed.fewest):
        told |= {"finest": middle(spacings, 0.1), "spacing": middle(spacings, 0.5)}
    return told | ({} if originals.values is None else {"original": middle(originals.values, 0.5)})


def _halves(described: Tensor, groups: Tensor, seed: int) -> list[Moments]:
    """Moments of two halves, no patient in both; a single patient's images are dealt out."""
    numbers = torch.unique(groups, return_inverse=True)[1]
    if int(numbers.max()) == 0:
        numbers = torch.arange(len(groups))
    order = torch.randperm(int(numbers.max()) + 1, generator=torch.Generator().manual_seed(seed))
    sides = order[numbers] % 2
    return [_moments(described[sides == side]) for side in (0, 1)]


def _moments(rows: Tensor) -> Moments:
    mean = rows.mean(0)
    deviation = rows - mean
    covariance = deviation.T @ deviation / max(1, len(rows))
    return Moments(images=len(rows), mean=rounded(mean), covariance=[rounded(row) for row in covariance])


def middle(values: Tensor, level: float) -> list[float]:
    """A percentile of each column, from which no image's own number can be read.

    A number that fewer than three images share gives way to the mean of three around it.

    >>> scans = torch.tensor([[0.5], [0.5], [0.5], [0.6], [0.9]])
    >>> middle(scans, 0.5), middle(scans, 0.9)
    ([0.5], [0.666667])
    """
    ordered = values.double().sort(dim=0).values
    place, count = round(level * (len(ordered) - 1)), min(SHARED, len(ordered))
    first = min(max(0, place - count // 2), len(ordered) - count)
    shared = (ordered == ordered[place]).sum(0) >= count
    return rounded(torch.where(shared, ordered[place], ordered[first : first + count].mean(0)))


def rounded(values: Iterable[Any]) -> list[float]:
    """As plain numbers of few digits."""
    return [float(f"{float(value):.{DIGITS}g}") for value in values]
