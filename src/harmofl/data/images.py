"""Labelled images as tensors, and the split of a site's images into train, val and test."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harmofl.errors import UsageError


@dataclass(frozen=True)
class LabelledImages:
    """Images of one site held in memory.

    images:  (N, C, H, W) float32 in [0, 1]
    targets: (N,) int64 class labels, or (N, H, W) int64 masks
    groups:  (N,) int64, the patient or case that each image belongs to
    """

    images: Tensor
    targets: Tensor
    groups: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def at(self, indices: Tensor) -> LabelledImages:
        """The images at these places, in this order."""
        return LabelledImages(self.images[indices], self.targets[indices], self.groups[indices])

    def batches(self, size: int) -> Iterator[LabelledImages]:
        """All images in order, in batches that share memory with them."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield LabelledImages(self.images[part], self.targets[part], self.groups[part])


def joined(parts: Sequence[LabelledImages]) -> LabelledImages:
    """The union of several sites' images; groups of different sites stay apart."""
    offsets, offset = [], 0
    for part in parts:
        offsets.append(part.groups + offset)
        offset += int(part.groups.max()) + 1
    return LabelledImages(
        torch.cat([part.images for part in parts]),
        torch.cat([part.targets for part in parts]),
        torch.cat(offsets),
    )


@dataclass(frozen=True)
class Site:
    """What one participant holds: images to train on, and images to score, by the site that they come from."""

    name: str
    train: LabelledImages
    val: Mapping[str, LabelledImages]
    test: Mapping[str, LabelledImages]


def split(
    images: LabelledImages, site: str, by: Literal["patient", "image"], seed: int
) -> tuple[LabelledImages, LabelledImages, LabelledImages]:
    """Train, val and test: 20 % of the patients (or images) to test, then 20 % of the rest to val."""
    groups = images.groups if by == "patient" else torch.arange(len(images))
    members = torch.unique(groups)
    if len(members) < 3:
        raise UsageError(f"{site}: {len(members)} {by}s cannot be split into train, val and test; it takes 3 or more")
    generator = torch.Generator().manual_seed(seed_of(seed, site, "split"))
    order = members[torch.randperm(len(members), generator=generator)]
    num_test = max(1, round(0.2 * len(order)))
    num_val = max(1, round(0.2 * (len(order) - num_test)))
    chosen = order.split([len(order) - num_test - num_val, num_val, num_test])
    train, val, test = (images.at(torch.isin(groups, part).nonzero().flatten()) for part in chosen)
    return train, val, test


def seed_of(*parts: object) -> int:
    """A seed from words and numbers, the same on every machine and in every process."""
    return zlib.crc32("/".join(map(str, parts)).encode())
