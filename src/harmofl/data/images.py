"""Labelled images in memory or on disk, and the split of a site's images into train, val and test."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harmofl.data.samples import SPLITS
from harmofl.errors import UsageError


class ImageSet(Protocol):
    """Images with their truth, wherever they lie."""

    @property
    def groups(self) -> Tensor:
        """(N,) int64, the patient or case that each image belongs to."""

    @property
    def nbytes(self) -> int:
        """What all images take in memory."""

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64 class labels, if the truth is a class."""

    def __len__(self) -> int:
        """How many images there are."""

    def at(self, indices: Tensor) -> ImageSet:
        """The images at these places, in this order, wherever they lie."""

    def load(self, indices: Tensor) -> LabelledImages:
        """The images at these places, in memory."""

    def batches(self, size: int) -> Iterator[LabelledImages]:
        """All images in order, in batches in memory."""


@dataclass(frozen=True)
class LabelledImages:
    """Images of one site held in memory.

    images:  (N, C, H, W) float32 in [0, 1]; volumes (N, C, D, H, W)
    targets: (N,) int64 class labels, or (N, H, W) int64 masks; of volumes (N, D, H, W)
    groups:  (N,) int64, the patient or case that each image belongs to
    spacings: of volumes, (N, 3) float64: millimetres between slices, rows and columns
    """

    images: Tensor
    targets: Tensor
    groups: Tensor
    spacings: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def nbytes(self) -> int:
        """What the images take."""
        return self.images.nbytes

    @property
    def labels(self) -> Tensor | None:
        """The class labels, unless the targets are masks."""
        return self.targets if self.targets.ndim == 1 else None

    def at(self, indices: Tensor) -> LabelledImages:
        """The images at these places, in this order."""
        return self._part(indices)

    def _part(self, places: Tensor | slice) -> LabelledImages:
        spacings = None if self.spacings is None else self.spacings[places]
        return LabelledImages(self.images[places], self.targets[places], self.groups[places], spacings)

    def load(self, indices: Tensor) -> LabelledImages:
        """The same: they are in memory."""
        return self.at(indices)

    def batches(self, size: int) -> Iterator[LabelledImages]:
        """All images in order, in batches that share memory with them."""
        for start in range(0, len(self), size):
            yield self._part(slice(start, start + size))


@dataclass(frozen=True)
class StoredImages:
    """Images that stay on disk until they are asked for: a data set may be larger than memory.

    planes: (P, C, H, W) uint8 or uint16, mapped; the largest value of the type stands for 1
    masks:  (P, H, W) unsigned, mapped, or None
    rows:   (N, K) int64: the planes whose channels, one after the other, make an image; its mask is the middle one's
    classes_of: (N,) int64 class labels in classification; in segmentation from a mask's values to classes
    """

    planes: NDArray[np.unsignedinteger]
    masks: NDArray[np.unsignedinteger] | None
    rows: Tensor
    classes_of: Tensor
    groups: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """What the images would take in memory, as 32-bit floats."""
        return int(self.rows.numel()) * int(np.prod(self.planes.shape[1:])) * 4

    @property
    def labels(self) -> Tensor | None:
        """The class labels, unless there are masks."""
        return self.classes_of if self.masks is None else None

    def at(self, indices: Tensor) -> StoredImages:
        """The images at these places; nothing is read."""
        classes_of = self.classes_of[indices] if self.masks is None else self.classes_of
        return replace(self, rows=self.rows[indices], groups=self.groups[indices], classes_of=classes_of)

    def load(self, indices: Tensor) -> LabelledImages:
        """Read the images at these places."""
        rows = self.rows[indices]
        planes = torch.from_numpy(self.planes[rows.numpy()])
        scale = float(np.iinfo(self.planes.dtype).max)
        images = planes.flatten(1, 2).to(torch.float32).div_(scale)
        if self.masks is None:
            return LabelledImages(images, self.classes_of[indices], self.groups[indices])
        values = torch.from_numpy(self.masks[rows[:, rows.shape[1] // 2].numpy()].astype(np.int64))
        return LabelledImages(images, self.classes_of[values], self.groups[indices])

    def batches(self, size: int) -> Iterator[LabelledImages]:
        """All images in order, read batch by batch."""
        for start in range(0, len(self), size):
            yield self.load(torch.arange(start, min(start + size, len(self))))


@dataclass(frozen=True)
class JoinedImages:
    """The union of several sets, which stay where they are; `places` are (set, index) pairs (N, 2)."""

    sets: tuple[ImageSet, ...]
    places: Tensor
    groups: Tensor

    def __len__(self) -> int:
        return len(self.places)

    @property
    def nbytes(self) -> int:
        """What the images take in memory."""
        per_image = self.sets[0].nbytes // max(1, len(self.sets[0]))
        return per_image * len(self)

    @property
    def labels(self) -> Tensor | None:
        """The class labels, if every set has them."""
        labels = [each.labels for each in self.sets]
        if any(each is None for each in labels):
            return None
        known = [each for each in labels if each is not None]
        starts = torch.tensor([0] + [len(each) for each in known]).cumsum(0)
        return torch.cat(known)[starts[self.places[:, 0]] + self.places[:, 1]]

    def at(self, indices: Tensor) -> JoinedImages:
        """The images at these places; nothing is read."""
        return replace(self, places=self.places[indices], groups=self.groups[indices])

    def load(self, indices: Tensor) -> LabelledImages:
        """Read the images at these places, set by set."""
        places = self.places[indices]
        order, parts = [], []
        for number in torch.unique(places[:, 0]).tolist():
            of_set = (places[:, 0] == number).nonzero().flatten()
            order.append(of_set)
            parts.append(self.sets[number].load(places[of_set, 1]))
        back = torch.argsort(torch.cat(order))
        return LabelledImages(
            torch.cat([part.images for part in parts])[back],
            torch.cat([part.targets for part in parts])[back],
            self.groups[indices],
        )

    def batches(self, size: int) -> Iterator[LabelledImages]:
        """All images in order, read batch by batch."""
        for start in range(0, len(self), size):
            yield self.load(torch.arange(start, min(start + size, len(self))))


def join_sets(parts: Sequence[ImageSet]) -> ImageSet:
    """The union of several sites' images; groups of different sites stay apart."""
    offset, groups = 0, []
    for part in parts:
        groups.append(part.groups + offset)
        offset += int(part.groups.max()) + 1
    in_memory = [part for part in parts if isinstance(part, LabelledImages)]
    if len(in_memory) == len(parts):
        images, targets = (torch.cat([getattr(part, name) for part in in_memory]) for name in ("images", "targets"))
        return LabelledImages(images, targets, torch.cat(groups))
    places = [torch.stack([torch.full((len(p),), n), torch.arange(len(p))], dim=1) for n, p in enumerate(parts)]
    return JoinedImages(tuple(parts), torch.cat(places), torch.cat(groups))


@dataclass(frozen=True)
class Site:
    """What one participant holds: images to train on, and images to score, by the site that they come from."""

    name: str
    train: ImageSet
    val: Mapping[str, ImageSet]
    test: Mapping[str, ImageSet]
    train_of: Mapping[str, ImageSet]
    """The training images by the site that they come from: all of them its own, unless it holds the union of all."""


Parts = tuple[ImageSet, ImageSet, ImageSet]
"""Train, val and test."""


def split(
    images: ImageSet,
    site: str,
    by: Literal["patient", "image"],
    seed: int,
    given: Sequence[str] | None = None,
    called: str = "",
    together: Tensor | None = None,
) -> Parts:
    """Train, val and test, as the data says where it does.

    `given` holds train, val, test or nothing for each image. What a site lacks is drawn from its training and
    unassigned images: 20 % of the patients (or images) to test, then 20 % of the rest to val. `called`: what a
    group of images is, if it is no patient. `together`: (N,) int64, images with the same number stay on one side,
    such as the tiles of a picture; a number for each image if it is not given.
    """
    apart = torch.arange(len(images)) if together is None else together
    groups = images.groups if by == "patient" else apart
    said = follow_groups(np.array(given if given is not None else [""] * len(images)), groups)
    pool = torch.from_numpy((said == "") | (said == "train"))
    members = torch.unique(groups[pool])
    lacking = [part for part in ("test", "val") if not (said == part).any()]
    if len(members) <= len(lacking):
        raise UsageError(_too_few(site, len(members), called or by, lacking))
    generator = torch.Generator().manual_seed(seed_of(seed, site, "split"))
    order = members[torch.randperm(len(members), generator=generator)]
    num_test = max(1, round(0.2 * len(order))) if "test" in lacking else 0
    num_val = max(1, round(0.2 * (len(order) - num_test))) if "val" in lacking else 0
    num_val = min(num_val, len(order) - num_test - 1)
    drawn = dict(zip(SPLITS, order.split([len(order) - num_test - num_val, num_val, num_test]), strict=True))
    chosen = {part: torch.isin(groups, drawn[part]) & pool | torch.from_numpy(said == part) for part in SPLITS[1:]}
    chosen["train"] = torch.isin(groups, drawn["train"]) & pool
    train, val, test = (images.at(chosen[part].nonzero().flatten()) for part in SPLITS)
    return train, val, test


def follow_groups(said: NDArray[np.str_], groups: Tensor) -> NDArray[np.str_]:
    """What images are assigned to, where unassigned images follow others of their patient that are not in training."""
    for part in ("test", "val"):
        theirs = torch.isin(groups, groups[torch.from_numpy(said == part)]).numpy()
        said = np.where((said == "") & theirs, part, said)
    return said


def order_by_need(order: Sequence[int], groups: Sequence[int], given: Sequence[str]) -> tuple[list[int], int]:
    """Cases in an order whose beginnings can be split if all can, and how many cases such a beginning has at least.

    First come one case each for the test and val that the data names, and so many to train on and to draw the others
    from that there are three, each of another patient. Then all other patients, then their second cases, and so on.
    """
    times: Counter[int] = Counter()
    turn = {}
    for case in order:
        turn[case] = times[groups[case]]
        times[groups[case]] += 1
    in_turn = sorted(order, key=turn.__getitem__)
    part_of = {case: given[case] if given[case] in SPLITS[1:] else "train" for case in order}
    wanted = {part: 1 for part in SPLITS[1:] if part in part_of.values()}
    wanted["train"] = len(SPLITS) - len(wanted)
    first = [case for part, count in wanted.items() for case in [c for c in in_turn if part_of[c] == part][:count]]
    return sorted(in_turn, key=lambda case: case not in first), len(first)


def _too_few(site: str, count: int, by: str, lacking: Sequence[str]) -> str:
    parts = ", ".join(["train", *reversed(lacking)]) if lacking else "train"
    hint = "" if by == "image" else " (data.split_by = 'image' divides images; data.sites can leave a site out)"
    plural = "" if count == 1 else "s"
    return f"{site}: {count} {by}{plural} cannot be split into {parts}; it takes {len(lacking) + 1} or more{hint}"


def split_into_batches(order: Tensor, size: int) -> list[Tensor]:
    """Batches of a size; a last batch of one image joins the one before, as batch norm needs two."""
    batches = list(torch.split(order, size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def seed_of(*parts: object) -> int:
    """A seed from words and numbers, the same on every machine and in every process."""
    return zlib.crc32("/".join(map(str, parts)).encode())
