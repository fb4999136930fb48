"""A site's training images on their way to the network: shuffled, augmented, harmonized."""

from __future__ import annotations

import math
from collections.abc import Iterator
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor

from harmofl.data.augmentation import find_augmentation
from harmofl.data.images import ImageSet, LabelledImages, split_into_batches
from harmofl.data.prefetch import prefetch
from harmofl.data.volumes import redraw
from harmofl.devices import send, to_device
from harmofl.displays.profiling import each
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
        """Yield inputs and targets of all local epochs, on the device.

        Where making a batch is work, a thread makes the next one while the last is trained on: the same bits, as all
        that is random in it follows from the generator. A layer that draws or learns is called here, in its turn.
        """
        kept = None if self._is_drawn else self._cached_images(harmonizer)
        if kept is not None:
            batches = self._batches_of(kept, generator)
            yield from prefetch(batches) if self._device.type == "cuda" else batches
            return
        in_its_turn = not harmonizer.repeatable or harmonizer.learns
        prepared = self._prepared(None if in_its_turn else harmonizer, generator)
        is_work = not isinstance(self._train, LabelledImages) or self._augment or not in_its_turn
        for images, targets in prefetch(each("preparation", prepared)) if is_work else prepared:
            yield (to_device(_harmonize(harmonizer, images), self._device) if in_its_turn else images), targets

    def _batches_of(self, kept: tuple[Tensor, Tensor], generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of harmonized images that are in memory."""
        for _ in range(self._training.local_epochs):
            for indices in self._draw(generator):
                harmonized, targets = kept[0][indices], kept[1][indices].long()
                yield to_device(harmonized, self._device), send(targets, self._device)

    def _prepared(self, harmonizer: Harmonizer | None, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches read and augmented, and harmonized if that may happen ahead."""
        train = self._train
        for _ in range(self._training.local_epochs):
            if self._is_drawn:  # other patches in every epoch, the same for the same seed, round and site
                train = redraw(self._train, int(torch.randint(2**31, (), generator=generator)))
            for indices in self._draw(generator):
                batch = train.load(indices)
                images, targets = batch.images, batch.targets
                if self._augment:
                    images, targets = self._augment(images, targets, generator)
                images = send(images, self._device)
                if harmonizer is not None:
                    images = to_device(_harmonize(harmonizer, images), self._device)
                yield images, send(targets, self._device)

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
            images.append(_harmonize(harmonizer, batch.images.to(self._device)).cpu())
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


@torch.no_grad()
def _harmonize(harmonizer: Harmonizer, images: Tensor) -> Tensor:
    """Harmonize images; nothing in front of the network is trained."""
    harmonized: Tensor = harmonizer(images)
    return harmonized


def _same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
