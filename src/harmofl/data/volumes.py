"""Volumes of any size, wherever they lie, and the patches that training draws of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harmofl.data.images import ImageSet, JoinedImages, LabelledImages, StoredImages, seed_of
from harmofl.data.preparation import Fit
from harmofl.data.windows import pad_to_size
from harmofl.settings import DataSettings

SHOWN = 128
"""Pixels of a slice in a contact sheet."""
MOST_PLACES = 2000
"""Voxels of each label that a volume's patches may have in their middle."""


@dataclass(frozen=True)
class VolumeSet:
    """Whole volumes with their masks, which stay on disk until they are asked for; they may differ in size.

    volumes:  each (C, D, H, W), whole numbers of which the largest of their type stands for 1, or float32 in [0, 1]
    masks:    each (D, H, W)
    places:   of each volume, some voxels of every label, numbered as in its flat mask
    spacings: (N, 3) float64, millimetres between slices, rows and columns
    classes_of: (values,) int64, from a mask's values to classes
    """

    volumes: tuple[NDArray[Any], ...]
    masks: tuple[NDArray[Any], ...]
    places: tuple[NDArray[np.int64], ...]
    spacings: Tensor
    classes_of: Tensor
    groups: Tensor
    rows: Tensor
    """(N,) int64, which volumes of all these it holds."""

    @classmethod
    def of(cls, images: LabelledImages) -> VolumeSet:
        """Volumes that are in memory."""
        volumes = tuple(images.images.numpy())
        masks = tuple(images.targets.numpy().astype(np.uint8))
        spacings = torch.ones(len(images), 3, dtype=torch.float64) if images.spacings is None else images.spacings
        places = tuple(choose_places(mask, seed=number) for number, mask in enumerate(masks))
        classes = torch.arange(256)
        return cls(volumes, masks, places, spacings, classes, images.groups, torch.arange(len(images)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """What all volumes would take in memory, as 32-bit floats."""
        return sum(4 * self.volumes[row].size for row in self.rows.tolist())

    @property
    def labels(self) -> Tensor | None:
        """None: the truth is a mask."""
        return None

    def at(self, indices: Tensor) -> VolumeSet:
        """The volumes at these places; nothing is read."""
        return replace(self, rows=self.rows[indices], groups=self.groups[indices], spacings=self.spacings[indices])

    def load(self, indices: Tensor) -> LabelledImages:
        """Read the volumes at these places, which must be of one size."""
        rows = self.rows[indices].tolist()
        return LabelledImages(
            torch.stack([_to_unit(self.volumes[row]) for row in rows]),
            torch.stack([self._classes(self.masks[row]) for row in rows]),
            self.groups[indices],
            self.spacings[indices],
        )

    def batches(self, size: int) -> Iterator[LabelledImages]:
        """All volumes in order, one by one: they may differ in size."""
        for number in range(len(self)):
            yield self.load(torch.tensor([number]))

    def patch(self, index: int, size: Sequence[int], foreground: float, seed: int) -> tuple[Tensor, Tensor]:
        """A patch of a volume and of its mask, as MONAI's `RandCropByPosNegLabel` draws it; only that much is read."""
        row = int(self.rows[index])
        volume, mask = self.volumes[row], self.masks[row]
        corner = _draw_corner(mask.shape, size, self.places[row], foreground, seed)
        place = tuple(slice(start, start + length) for start, length in zip(corner, size, strict=True))
        images = pad_to_size(np.asarray(volume[(slice(None), *place)]), size)
        return _to_unit(images), self._classes(pad_to_size(np.asarray(mask[place]), size))

    def _classes(self, mask: NDArray[Any]) -> Tensor:
        return self.classes_of[torch.from_numpy(mask.astype(np.int64))]


def _to_unit(volume: NDArray[Any]) -> Tensor:
    values = torch.from_numpy(np.array(volume, dtype=np.float32))
    return values if volume.dtype.kind == "f" else values.div_(float(np.iinfo(volume.dtype).max))


def choose_places(mask: NDArray[Any], seed: int) -> NDArray[np.int64]:
    """Voxels of a mask that are not background, the same number of every label if there are enough."""
    flat, random = mask.reshape(-1), np.random.default_rng(seed)
    inside = np.flatnonzero(flat)
    labels = flat[inside]
    chosen = [inside[labels == label] for label in np.unique(labels)]
    drawn = [each if len(each) <= MOST_PLACES else np.sort(random.choice(each, MOST_PLACES, False)) for each in chosen]
    return np.concatenate(drawn).astype(np.int64) if drawn else np.empty(0, dtype=np.int64)


def _draw_corner(
    shape: Sequence[int], size: Sequence[int], places: NDArray[np.int64], foreground: float, seed: int
) -> list[int]:
    """Where a patch begins whose middle is one of the places, or any voxel, moved so that it lies inside."""
    from monai.transforms.utils import generate_pos_neg_label_crop_centers

    fitting = [min(length, most) for length, most in zip(size, shape, strict=True)]
    random = np.random.RandomState(seed)
    anywhere = np.array([random.randint(int(np.prod(shape)))])
    with warnings.catch_warnings():  # a mask without foreground is no mistake
        warnings.simplefilter("ignore")
        (middle,) = generate_pos_neg_label_crop_centers(fitting, 1, foreground, shape, places, anywhere, random)
    return [int(centre) - length // 2 for centre, length in zip(middle, fitting, strict=True)]


@dataclass(frozen=True)
class PatchSet:
    """Patches of volumes: so many of each, another draw for every seed."""

    volumes: VolumeSet
    size: tuple[int, ...]
    per_volume: int
    foreground: float
    numbers: Tensor
    """(N,) int64: the volume times `per_volume`, plus which of its patches."""
    seed: int = 0

    @classmethod
    def of(cls, volumes: VolumeSet, data: DataSettings) -> PatchSet:
        """The patches of all volumes, as the settings say."""
        numbers = torch.arange(len(volumes) * data.patches)
        return cls(volumes, data.input_size, data.patches, data.foreground, numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def groups(self) -> Tensor:
        """The patient of each patch."""
        return self.volumes.groups[self.numbers // self.per_volume]

    @property
    def nbytes(self) -> int:
        """What all patches take in memory."""
        channels = self.volumes.volumes[0].shape[0] if self.volumes.volumes else 0
        return 4 * len(self) * channels * int(np.prod(self.size))

    @property
    def labels(self) -> Tensor | None:
        """None: the truth is a mask."""
        return None

    def at(self, indices: Tensor) -> PatchSet:
        """The patches at these places; nothing is read."""
        return replace(self, numbers=self.numbers[indices])

    def load(self, indices: Tensor) -> LabelledImages:
        """Read the patches at these places."""
        pairs = [self._patch(number) for number in self.numbers[indices].tolist()]
        volumes = self.numbers[indices] // self.per_volume
        return LabelledImages(
            torch.stack([image for image, _ in pairs]),
            torch.stack([mask for _, mask in pairs]),
            self.volumes.groups[volumes],
            self.volumes.spacings[volumes],
        )

    def _patch(self, number: int) -> tuple[Tensor, Tensor]:
        seed = seed_of(self.seed, number, "patch")
        return self.volumes.patch(number // self.per_volume, self.size, self.foreground, seed)

    def batches(self, size: int) -> Iterator[LabelledImages]:
        """All patches in order, read batch by batch."""
        for start in range(0, len(self), size):
            yield self.load(torch.arange(start, min(start + size, len(self))))


def middle_slices(volumes: VolumeSet, size: int = SHOWN) -> StoredImages:
    """Of each volume the slice with most in its mask, or its middle one, as a square picture."""
    chosen = [_middle_slice(volumes.volumes[row], volumes.masks[row], size) for row in volumes.rows.tolist()]
    planes, masks = (np.stack(each) for each in zip(*chosen, strict=True))
    rows = torch.arange(len(volumes))[:, None]
    return StoredImages(planes, masks, rows, volumes.classes_of, volumes.groups)


def _middle_slice(volume: NDArray[Any], mask: NDArray[Any], size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    counts = np.count_nonzero(mask, axis=(1, 2))
    number = int(counts.argmax()) if counts.any() else len(mask) // 2
    fit = Fit(mask.shape[1], mask.shape[2], size, resize=True)
    return fit.images(np.array(volume[:, number])[None])[0], fit.masks(np.array(mask[number])[None])[0]


def to_patches(images: ImageSet, data: DataSettings) -> ImageSet:
    """What a network is trained on: patches of volumes with masks; other images as they are."""
    if isinstance(images, LabelledImages) and images.targets.ndim == 4:
        images = VolumeSet.of(images)
    return PatchSet.of(images, data) if isinstance(images, VolumeSet) else images


def count_whole(images: ImageSet) -> int:
    """How many images there are, and of patches how many volumes they are of: however many are drawn of it, one."""
    if isinstance(images, PatchSet):
        return len(torch.unique(images.numbers // images.per_volume))
    return sum(map(count_whole, images.sets)) if isinstance(images, JoinedImages) else len(images)


def redraw(images: ImageSet, seed: int) -> ImageSet:
    """The same images with other patches of their volumes; the very same object if it holds no patches."""
    if isinstance(images, PatchSet):
        return replace(images, seed=seed)
    if isinstance(images, JoinedImages):
        sets = tuple(redraw(each, seed_of(seed, number)) for number, each in enumerate(images.sets))
        is_same = all(new is old for new, old in zip(sets, images.sets, strict=True))
        return images if is_same else replace(images, sets=sets)
    return images
