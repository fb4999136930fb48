"""A site's training images on their way to the network: shuffled, augmented, harmonized."""

from __future__ import annotations

import math
from collections.abc import Iterator
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor

from harmofl.data.augmentation import find_augmentation
from harmofl.data.images import ImageSet, split_into_batches
from harmofl.data.volumes import redraw
from harmofl.devices import to_device
from harmofl.methods.layers import Harmonizer
from harmofl.settings import TrainingSettings
from harmofl.states import State, snapshot

LARGEST_CACHE = 2**28
"""Bytes of harmonized images that a process keeps in memory, all its sites together."""

_keeping: WeakKeyDictionary[TrainingInputs, int] = WeakKeyDictionary()
"""The bytes that each site of this process keeps."""
_one_at_a_time = Lock()


class TrainingInputs:
    """Makes batches; harmonized images are kept from round to round where that changes nothing, not a single bit."""

    def __init__(
        self,
        train: ImageSet,
        training: TrainingSettings,
        device: torch.device,
        batches_at_once: int = 1,
        independent: bool = False,
    ) -> None:
        """`batches_at_once`: how many batches of `training.batch_size` images make a step.

        `independent`: draw every image for every step by itself, so that batches differ in size; some may be empty.
        """
        self._independent = independent
        self._batch_size = training.batch_size * batches_at_once
        self._train = train
        self._training = training
        self._device = device
        self._augment = find_augmentation(training.augmentation)
        self._is_drawn = redraw(train, 1) is not train
        self._harmonized: Tensor | None = None
        self._targets: Tensor | None = None
        self._made_with: State = {}

    def batches(self, harmonizer: Harmonizer, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of all local epochs, on the device."""
        kept = None if self._is_drawn else self._cached_images(harmonizer)
        train = self._train
        for _ in range(self._training.local_epochs):
            if self._is_drawn:  # other patches in every epoch, the same for the same seed, round and site
                train = redraw(self._train, int(torch.randint(2**31, (), generator=generator)))
            for indices in self._draw(generator):
                if kept is not None:
                    harmonized, targets = kept[0][indices], kept[1][indices].long()
                    inputs = harmonized.to(self._device)
                else:
                    batch = train.load(indices)
                    images, targets = batch.images, batch.targets
                    if self._augment:
                        images, targets = self._augment(images, targets, generator)
                    inputs = harmonizer(images.to(self._device))
                yield to_device(inputs, self._device), targets.to(self._device)

    def _draw(self, generator: Generator) -> Iterator[Tensor]:
        """Yield which images make the steps of an epoch."""
        count = len(self._train)
        if not self._independent:
            yield from split_into_batches(torch.randperm(count, generator=generator), self._batch_size)
            return
        for _ in range(math.ceil(count / self._batch_size)):
            yield (torch.rand(count, generator=generator) < self._batch_size / count).nonzero().flatten()

    def _cached_images(self, harmonizer: Harmonizer) -> tuple[Tensor, Tensor] | None:
        """All images harmonized, with their targets, if they may be kept and there is something to harmonize."""
        state = snapshot(harmonizer)
        unchanged = harmonizer.repeatable and not harmonizer.learns and self._augment is None
        if not (state and unchanged and self._has_room()):
            return None
        if self._harmonized is None or self._targets is None or not _same(state, self._made_with):
            self._harmonized, self._targets = self._harmonize_all(harmonizer)
            self._made_with = state
        return self._harmonized, self._targets

    def _harmonize_all(self, harmonizer: Harmonizer) -> tuple[Tensor, Tensor]:
        images, targets = [], []
        # In batches as in training: a batch of one image may differ in the last bit.
        for indices in split_into_batches(torch.arange(len(self._train)), self._batch_size):
            batch = self._train.load(indices)
            images.append(harmonizer(batch.images.to(self._device)).cpu())
            targets.append(batch.targets.to(torch.int16))  # a quarter of the bytes
        return torch.cat(images), torch.cat(targets)

    def _has_room(self) -> bool:
        own = self._train.nbytes * 3 // 2  # a mask takes half of what a grey image does
        with _one_at_a_time:
            others = sum(size for inputs, size in _keeping.items() if inputs is not self)
            has_room = others + own <= LARGEST_CACHE
            if has_room:
                _keeping[self] = own
        return has_room


def _same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
