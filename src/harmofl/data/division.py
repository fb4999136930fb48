"""How a site's images are divided: which count, whose they are, and which are for training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harmofl.data.cache import Entry
from harmofl.data.classes import Classes
from harmofl.data.decoding import DecodedSite
from harmofl.data.images import (
    ImageSet,
    Parts,
    StoredImages,
    follow_groups,
    order_by_need,
    seed_of,
    split,
)
from harmofl.data.listing import draw_places
from harmofl.data.samples import Sample
from harmofl.data.volume_decoding import GRID, SPACING
from harmofl.data.volumes import VolumeSet
from harmofl.errors import UsageError
from harmofl.settings import DataSettings

Places = NDArray[np.int64]
"""Places of planes in an entry."""


@dataclass(frozen=True)
class DividedSite:
    """A site's images (tiles, slices), with the part that the data itself assigns each to."""

    site: str
    images: StoredImages | VolumeSet
    assigned: tuple[str, ...]
    """Train, val or test; empty where the data does not say."""
    split_by: Literal["patient", "image"]
    group_name: str
    """What a group of images is called: a patient, or an image."""
    pictures: Tensor
    """(N,) the picture or slice that each image is, or is a tile of."""

    def parts(self, seed: int) -> Parts:
        """Train, val and test, as the data says where it does."""
        return split(
            self.images, self.site, self.split_by, seed, self.assigned, called=self.group_name, together=self.pictures
        )

    def assigned_to(self, part: str) -> ImageSet | None:
        """The images that the data itself assigns to val or test, if there are any."""
        places = torch.from_numpy(np.array(self.assigned) == part).nonzero().flatten()
        return self.images.at(places) if len(places) and part != "train" else None


def divide_site(decoded: DecodedSite, classes: Classes, data: DataSettings, limit: int) -> DividedSite:
    """The images of a site that count, in the order of its planes; `limit`: at most so many, 0 for all."""
    entry, samples = decoded.entry, decoded.samples
    if entry is None:
        raise UsageError(f"{decoded.site}: not one of its images could be read")
    places = _choose_planes(decoded.site, entry, samples, data, limit)
    of_sample = torch.from_numpy(entry.sample[places])
    if entry.masks is None:
        labels = torch.tensor([classes.index(sample.label) for sample in samples], dtype=torch.int64)
        classes_of = labels[of_sample]
    else:
        classes_of = torch.tensor(classes.table(up_to=int(max(map(max, entry.values)))), dtype=torch.int64)
    rows = torch.from_numpy(add_neighbours(entry, places, data.neighbours))
    groups = torch.tensor(number_groups(samples, data), dtype=torch.int64)[of_sample]
    images: StoredImages | VolumeSet = StoredImages(entry.planes, entry.masks, rows, classes_of, groups)
    if entry.places is not None:
        images = _volumes(entry, places, classes_of, groups)
    has_patients = data.split_by == "patient" and any(sample.patient for sample in samples)
    return DividedSite(
        site=decoded.site,
        images=images,
        assigned=tuple(_assigned_parts(samples, data)[entry.sample[places]].tolist()),
        split_by=data.split_by,
        pictures=torch.from_numpy(_number_pictures(entry)[places]),
        group_name="patient" if has_patients else "image",
    )


def _volumes(entry: Entry, places: Places, classes_of: Tensor, groups: Tensor) -> VolumeSet:
    """The volumes of an entry, which lie there flat and one after the other."""
    assert entry.masks is not None
    assert entry.places is not None
    sizes = np.stack([entry.facts[name] for name in GRID], axis=1).astype(np.int64)
    ends = np.cumsum(sizes.prod(axis=1)).tolist()
    volumes, masks = [], []
    for size, start, end in zip(sizes.tolist(), [0, *ends], ends, strict=False):
        channels = entry.channels
        volumes.append(entry.planes[channels * start : channels * end].reshape(channels, *size))
        masks.append(entry.masks[start:end].reshape(size))
    spacings = torch.from_numpy(np.stack([entry.facts[name] for name in SPACING], axis=1)[places])
    return VolumeSet(
        tuple(volumes), tuple(masks), tuple(entry.places), spacings, classes_of, groups, torch.from_numpy(places)
    )


def cut_training(parts: Parts, site: str, size: int, seed: int) -> Parts:
    """The same parts with no more training images than that, each class in proportion."""
    train, val, test = parts
    return train.at(draw_stratified(train, size, seed_of(seed, site, "cut"))), val, test


def number_groups(samples: Sequence[Sample], data: DataSettings) -> list[int]:
    """A number for each sample's patient; a sample without one is its own."""
    by_patient = data.split_by == "patient"
    names = [each.patient if by_patient and each.patient else f"\0{number}" for number, each in enumerate(samples)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


def _assigned_parts(samples: Sequence[Sample], data: DataSettings) -> NDArray[np.str_]:
    """The part that the data assigns each sample to, by its patient if not by itself."""
    groups = torch.tensor(number_groups(samples, data))
    return follow_groups(np.array([sample.split for sample in samples]), groups)


def _choose_planes(site: str, entry: Entry, samples: Sequence[Sample], data: DataSettings, limit: int) -> Places:
    places = np.arange(len(entry.sample))
    if data.slices != "all" and entry.masks is not None and data.dimensions == 2:
        wanted = _has_foreground_slice(entry)
        places = places[wanted & _is_inner_slice(entry) if data.slices == "inner-with-foreground" else wanted]
    if len(places) == 0:
        raise UsageError(f"{site}: no slice holds anything of its mask (data.slices = {data.slices!r})")
    if not limit or len(places) <= limit:
        return places
    if data.dimensions == 2 and (entry.facts["slices"] > 1).any():  # whole volumes, as a case is scored as a whole
        return _draw_volumes(site, entry, samples, places, data, limit)
    drawn: Places = places[draw_places(len(places), limit, data.seed, site).numpy()]
    return drawn


def _draw_volumes(
    site: str, entry: Entry, samples: Sequence[Sample], places: Places, data: DataSettings, limit: int
) -> Places:
    """The slices of volumes drawn at random, as many as stay within the limit, but enough to be split."""
    sizes = np.bincount(entry.sample[places], minlength=len(samples))
    by_chance = draw_places(len(samples), len(samples), data.seed, site, sort_replies=False).tolist()
    not_empty = [volume for volume in by_chance if sizes[volume]]
    order, needed = order_by_need(not_empty, number_groups(samples, data), _assigned_parts(samples, data).tolist())
    fitting = max(needed, int((sizes[order].cumsum() <= limit).sum()))
    return places[np.isin(entry.sample[places], order[:fitting])]


def _has_foreground_slice(entry: Entry) -> NDArray[np.bool_]:
    """Planes of slices of which any tile holds something; pictures always count."""
    slices = _number_pictures(entry)
    in_slice = np.bincount(slices, weights=entry.foreground)[slices]
    is_volume = entry.facts["slices"][entry.sample] > 1
    return np.asarray((in_slice > 0) | ~is_volume)


def _is_inner_slice(entry: Entry) -> NDArray[np.bool_]:
    """Planes of slices that have neighbours on both sides; pictures always count."""
    last = entry.facts["slices"][entry.sample] - 1
    return np.asarray((last == 0) | ((entry.slice > 0) & (entry.slice < last)))


def _number_pictures(entry: Entry) -> Places:
    """For each plane the number of its picture or slice, which tiles share."""
    _, numbers = np.unique(np.stack([entry.sample, entry.slice]), axis=1, return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def add_neighbours(entry: Entry, places: Places, count: int) -> Places:
    """For each plane itself and the same tile of the slices around it; the end slices are their own neighbours."""
    sample = entry.sample[places]
    if count == 0:
        return places[:, None]
    tiles = entry.tiles[sample]
    last = (entry.facts["slices"][sample]).astype(np.int64) - 1
    rows = []
    for offset in range(-count, count + 1):
        wanted = np.clip(entry.slice[places] + offset, 0, last)
        rows.append(places + (wanted - entry.slice[places]) * tiles)
    return np.stack(rows, axis=1)


def draw_stratified(images: ImageSet, wanted: int, seed: int) -> Tensor:
    """The places of this many images, drawn at random, each class in proportion."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    labels = images.labels
    if labels is None or len(images) <= wanted:
        return order[:wanted].sort().values
    ranks = torch.zeros(len(images), dtype=torch.float64)
    for label in torch.unique(labels):
        members = order[labels[order] == label]
        # The k-th of n images of a class stands at (k + ½)/n: the first places hold every class in proportion.
        ranks[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    return torch.argsort(ranks, stable=True)[:wanted].sort().values
