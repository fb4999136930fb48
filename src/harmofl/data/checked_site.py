"""One site's images by the split that they fall into, in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harmofl.data.cache import Entry
from harmofl.data.classes import Classes
from harmofl.data.folder import ImageFolder
from harmofl.data.images import ImageSet, StoredImages
from harmofl.data.resampling import OWN_SPACING
from harmofl.data.samples import SPLITS, Sample
from harmofl.data.volume_decoding import GRID
from harmofl.data.volumes import VolumeSet
from harmofl.errors import UsageError

UNASSIGNED = "unassigned"
"""The split of images of a site that cannot be divided, and of which the data says nothing."""
HELD_OUT = "held out"
"""The split of a site that takes no part in training."""
PLANES_AT_ONCE = 256

Range = tuple[int, int]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """What one site has in one split; sizes and intensities are those of the original files."""

    site: str
    split: str
    images: int
    """What the network sees: pictures, tiles or slices."""
    files: int
    patients: int | None
    """None where the data names no patients."""
    height: Range | None = None
    """The smallest and the largest; None, as all that follows, where there are no images."""
    width: Range | None = None
    slices: Range | None = None
    channels: Range | None = None
    spacing: tuple[tuple[float, float], ...] | None = None
    """Of volumes that stay whole, millimetres between slices, rows and columns; None where a file does not say."""
    intensity: tuple[float, float, float] | None = None
    """Minimum, mean over all pixels, and maximum."""
    labels: Mapping[str, int] | None = None
    """Images per class; in classification."""
    foreground: Mapping[str, float] | None = None
    """The share of pixels of each class but background; in segmentation."""
    without_foreground: float | None = None
    """The share of images that are all background; in segmentation."""


class CheckedSite:
    """One site's images, by the split that they fall into."""

    def __init__(self, folder: ImageFolder, site: str, classes: Classes | None) -> None:
        self.name = site
        self.listed, decoded = folder.listing.samples[site], folder.decoded(site)
        self.samples, self.entry, self.prints = decoded.samples, decoded.entry, decoded.prints
        self.classes = classes
        self.planes: dict[str, Places] = {}
        if self.entry is not None:
            self.planes = _as_trained(folder, site) or _as_said(self.entry, self.samples)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """What the site has in each split."""
        if self.entry is None:
            return (Row(self.name, UNASSIGNED, images=0, files=len(self.listed), patients=_patients(self.listed)),)
        pixels = None
        if self.entry.masks is not None and self.classes is not None:
            masks = self.entry.masks
            if self.entry.places is None:
                pixels = _pixels_per_class(masks, self.classes)
            else:  # volumes lie there flat, one after the other
                ends = np.cumsum(np.prod([self.entry.facts[name] for name in GRID], axis=0).astype(np.int64))[:-1]
                each = [_pixels_per_class(mask[None, None], self.classes) for mask in np.split(masks, ends)]
                pixels = np.concatenate(each)
        return tuple(self._row(self.entry, split, planes, pixels) for split, planes in self.planes.items())

    def _row(self, entry: Entry, split: str, planes: Places, pixels: NDArray[np.int64] | None) -> Row:
        files = np.unique(entry.sample[planes])
        samples = [self.samples[number] for number in files.tolist()]
        facts = {name: values[files] for name, values in entry.facts.items()}
        row = Row(self.name, split, images=len(planes), files=len(files), patients=_patients(samples))
        return Row(**vars(row) | _described(facts) | self._balance(entry, planes, pixels)) if len(planes) else row

    def _balance(self, entry: Entry, planes: Places, pixels: NDArray[np.int64] | None) -> dict[str, Any]:
        if entry.masks is None:
            return {"labels": self._labels(entry.sample[planes])}
        if self.classes is None or pixels is None:
            return {"without_foreground": float((entry.foreground[planes] == 0).mean())}
        own = pixels[planes]
        shares = own.sum(axis=0) / own.sum()
        return {
            "foreground": dict(zip(self.classes.names[1:], shares[1:].tolist(), strict=True)),
            "without_foreground": float((own[:, 1:].sum(axis=1) == 0).mean()),
        }

    def _labels(self, samples: Places) -> dict[str, int]:
        labels = np.array([sample.label for sample in self.samples])[samples]
        names, counts = np.unique(labels, return_counts=True)
        known = dict.fromkeys(self.classes.names if self.classes else (), 0)
        return known | dict(zip(names.tolist(), counts.tolist(), strict=True))

    def split_of_samples(self) -> list[str]:
        """The split of each sample; empty for one that training leaves out."""
        splits = [""] * len(self.samples)
        if self.entry is not None:
            for split, planes in self.planes.items():
                for number in np.unique(self.entry.sample[planes]).tolist():
                    splits[number] = split
        return splits


def _as_trained(folder: ImageFolder, site: str) -> dict[str, Places] | None:
    """The planes in each split of a training; None if there could be no training."""
    try:
        if site == folder.data.hold_out_site:
            return {HELD_OUT: _planes(folder.whole(site))}
        return {split: _planes(part) for split, part in zip(SPLITS, folder.parts(site), strict=True)}
    except UsageError:  # already noted
        return None


def _as_said(entry: Entry, samples: Sequence[Sample]) -> dict[str, Places]:
    """The planes in each split that the data names."""
    said = np.array([sample.split or UNASSIGNED for sample in samples])[entry.sample]
    return {split: np.flatnonzero(said == split) for split in (*SPLITS, UNASSIGNED) if split in said}


def _planes(images: ImageSet) -> Places:
    """The plane in the middle of each image: the others are its neighbours."""
    if isinstance(images, VolumeSet):
        return np.asarray(images.rows.numpy())
    assert isinstance(images, StoredImages)
    rows: Places = images.rows.numpy()
    return rows[:, rows.shape[1] // 2]


def _patients(samples: Sequence[Sample]) -> int | None:
    return len({sample.patient for sample in samples if sample.patient}) or None


def _described(facts: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """The sizes and intensities of some originals."""
    sizes = {
        name: (int(facts[name].min()), int(facts[name].max())) for name in ("height", "width", "slices", "channels")
    }
    pixels = facts["slices"] * facts["channels"] * facts["height"] * facts["width"]
    mean = float(np.average(facts["mean"], weights=pixels))
    spacing = _spacing(facts) if GRID[0] in facts else None
    return sizes | {
        "spacing": spacing,
        "intensity": (float(facts["minimum"].min()), mean, float(facts["maximum"].max())),
    }


def _spacing(facts: Mapping[str, NDArray[np.float64]]) -> tuple[tuple[float, float], ...] | None:
    """The smallest and the largest distance along each axis; none if a file does not tell them."""
    axes = [facts[name] for name in OWN_SPACING]
    if not all(axis.all() for axis in axes):
        return None
    return tuple((float(axis.min()), float(axis.max())) for axis in axes)


def _pixels_per_class(masks: NDArray[Any], classes: Classes) -> NDArray[np.int64]:
    """(P, classes): how many pixels of each class a plane's mask has; few masks are in memory at once."""
    table = np.zeros(2**16, dtype=np.uint8)  # a value beyond the classes, which is a problem, counts as background
    table[: len(classes.table())] = classes.table()
    counts = np.zeros((len(masks), len(classes.names)), dtype=np.int64)
    for start in range(0, len(masks), PLANES_AT_ONCE):
        part = slice(start, start + PLANES_AT_ONCE)
        places = table[masks[part]]
        for place in range(1, len(classes.names)):
            counts[part, place] = np.count_nonzero(places == place, axis=(1, 2))
    counts[:, 0] = masks[0].size - counts.sum(axis=1)
    return counts
