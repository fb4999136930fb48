"""A site's training images on their way to the network: shuffled, augmented, harmonized."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from harmofl.data.augmentation import dihedral
from harmofl.data.images import LabelledImages
from harmofl.methods.harmonizers import Harmonizer
from harmofl.settings import TrainingSettings
from harmofl.states import State, snapshot

LARGEST_CACHE = 2**30
"""Bytes of harmonized images that a site keeps in memory."""


class TrainingInputs:
    """Makes batches; harmonized images are kept from round to round where that changes nothing, not a single bit."""

    def __init__(self, train: LabelledImages, training: TrainingSettings, device: torch.device) -> None:
        self._train = train
        self._training = training
        self._device = device
        self._harmonized: Tensor | None = None
        self._made_with: State = {}

    def batches(self, harmonizer: Harmonizer, learns: bool, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of all local epochs, on the device; `learns`: the harmonizer still changes."""
        keeps = not learns and self._training.augmentation == "none" and self._train.images.nbytes <= LARGEST_CACHE
        harmonized = self._all_harmonized(harmonizer) if keeps else None
        for _ in range(self._training.local_epochs):
            order = torch.randperm(len(self._train), generator=generator)
            for indices in in_batches(order, self._training.batch_size):
                targets = self._train.targets[indices]
                if harmonized is not None:
                    inputs = harmonized[indices].to(self._device)
                else:
                    images = self._train.images[indices]
                    if self._training.augmentation == "dihedral":
                        images, targets = dihedral(images, targets, generator)
                    inputs = harmonizer(images.to(self._device))
                yield inputs.to(memory_format=torch.channels_last), targets.to(self._device)

    def _all_harmonized(self, harmonizer: Harmonizer) -> Tensor:
        state = snapshot(harmonizer)
        if not state:  # nothing is harmonized
            return self._train.images
        if self._harmonized is None or not _same(state, self._made_with):
            batches = self._train.batches(self._training.batch_size)
            self._harmonized = torch.cat([harmonizer(batch.images.to(self._device)).cpu() for batch in batches])
            self._made_with = state
        return self._harmonized


def _same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def in_batches(order: Tensor, size: int) -> list[Tensor]:
    """Batches of a size; a last batch of one image joins the one before, as batch norm needs two."""
    batches = list(torch.split(order, size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches
