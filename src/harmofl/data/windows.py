"""Windows that cover an image, and their logits joined so that the middle of each counts most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Place = tuple[slice, ...]


def starts(length: int, size: int, overlap: float) -> list[int]:
    """Where windows begin that cover a length and share a part of their size; the last ends where the length does."""
    step = max(1, int(size * (1 - overlap)))
    return [*range(0, length - size, step), length - size]


@cache
def importance(*size: int) -> Tensor:
    """How much a window's pixels count: most in the middle, where the network sees all around them."""
    from monai.data.utils import compute_importance_map

    weights: Tensor = compute_importance_map(size, mode="gaussian")
    return weights


def pad_to_size(values: NDArray[Any], size: Sequence[int]) -> NDArray[Any]:
    """Images (…, *spatial) at least of the size; what is added at their ends mirrors them.

    Black borders would be a new look.
    """
    missing = [max(0, least - length) for least, length in zip(size, values.shape[-len(size) :], strict=True)]
    if not any(missing):
        return values
    return np.pad(values, [(0, 0)] * (values.ndim - len(size)) + [(0, more) for more in missing], mode="symmetric")


@dataclass(frozen=True)
class WindowGrid:
    """The windows of a volume, as those of MONAI's sliding window."""

    shape: tuple[int, ...]
    """Of the volume, before it is padded."""
    size: tuple[int, ...]
    overlap: float

    @property
    def padded(self) -> tuple[int, ...]:
        """Of the volume that windows are cut from."""
        return tuple(max(length, least) for length, least in zip(self.shape, self.size, strict=True))

    def places(self) -> list[Place]:
        """Where each window lies in the padded volume."""
        axes = [starts(length, size, self.overlap) for length, size in zip(self.padded, self.size, strict=True)]
        return [
            tuple(slice(start, start + size) for start, size in zip(corner, self.size, strict=True))
            for corner in product(*axes)
        ]

    def cut(self, volume: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Each window of a volume (C, *shape)."""
        padded = pad_to_size(volume, self.size)
        for place in self.places():
            yield padded[(slice(None), *place)]

    def join(self, logits: Iterator[Tensor]) -> Tensor:
        """The logits (classes, *shape) of the volume, from those of each window in order."""
        weights, weight_sum, total = importance(*self.size), torch.zeros(self.padded), torch.zeros(())
        for place in self.places():
            window = next(logits)
            if total.ndim == 0:
                total = torch.zeros(len(window), *self.padded)
            total[(slice(None), *place)] += weights * window
            weight_sum[place] += weights
        return total.div_(weight_sum)[(slice(None), *(slice(length) for length in self.shape))]
