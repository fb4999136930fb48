"""What a network for volumes must know of them, and how often it may halve each axis (nnU-Net's rule)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from harmofl.errors import UsageError

Strides = tuple[tuple[int, int, int], ...]
"""By what each level divides slices, rows and columns, from the first halving to the deepest."""

SMALLEST_FEATURES = 4
"""Voxels that every axis keeps at the deepest level."""
NEARLY_ISOTROPIC = 2.0
"""An axis whose voxels are at least so many times longer than the shortest is left as it is."""


class Volume(NamedTuple):
    """The volumes that a network sees.

    Attributes:
        patch: slices, rows and columns of its input.
        spacing: millimetres between them.
        strides: by what each level divides them; by nnU-Net's rule if empty.
    """

    patch: tuple[int, int, int]
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)
    strides: Strides = ()

    @property
    def levels(self) -> Strides:
        """The strides, chosen or by the rule."""
        return self.strides or plan_strides(self.patch, self.spacing)

    @property
    def kernels(self) -> Strides:
        """Of the convolutions before each halving and at the deepest level: 1 along an axis of voxels that are far."""
        spacing, sizes, reached = list(self.spacing), [], [1, 1, 1]
        for strides in self.levels:
            reached = [
                3 if step < NEARLY_ISOTROPIC * min(spacing) else size
                for step, size in zip(spacing, reached, strict=True)
            ]
            sizes.append((reached[0], reached[1], reached[2]))
            spacing = [step * stride for step, stride in zip(spacing, strides, strict=True)]
        return (*sizes, (3, 3, 3))


def plan_strides(patch: Sequence[int], spacing: Sequence[float]) -> Strides:
    """Halve the axes with the finest voxels first, until none has room for another halving.

    Args:
        patch: Slices, rows and columns of the network's input.
        spacing: Millimetres between them.

    Returns:
        A stride of 1 or 2 for each axis, level by level.

    >>> plan_strides((16, 64, 64), (3.0, 0.8, 0.8))
    ((1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2))
    """
    sizes, steps = list(patch), list(spacing)
    levels: list[tuple[int, int, int]] = []
    while True:
        roomy = [axis for axis in range(3) if sizes[axis] >= 2 * SMALLEST_FEATURES]
        finest = min((steps[axis] for axis in roomy), default=math.inf)
        halved = [axis for axis in roomy if steps[axis] < NEARLY_ISOTROPIC * finest]
        if not halved or (len(halved) == 1 and sizes[halved[0]] < 3 * SMALLEST_FEATURES):
            return tuple(levels)
        depth, height, width = (2 if axis in halved else 1 for axis in range(3))
        levels.append((depth, height, width))
        for axis in halved:
            sizes[axis], steps[axis] = math.ceil(sizes[axis] / 2), 2 * steps[axis]


def check_strides(volume: Volume) -> None:
    """Raise an error for a patch that its strides do not divide, or that leaves too few levels."""
    levels, patch = volume.levels, list(volume.patch)
    if len(levels) < 2:
        raise UsageError(
            f"data.patch = {patch}: too small for dynunet, which halves it twice or more; try [16, 32, 32]"
        )
    divisors = [math.prod(level[axis] for level in levels) for axis in range(3)]
    if any(size % divisor for size, divisor in zip(patch, divisors, strict=True)):
        allowed = ", ".join(map(str, divisors))
        raise UsageError(f"data.patch = {patch}: dynunet takes multiples of {allowed} (slices, rows, columns)")


def check_halvings(network: str, volume: Volume, smallest: int) -> None:
    """Raise an error for a patch that is too small for a network that halves every axis as often."""
    if min(volume.patch) < smallest:
        hint = "; dynunet takes flat ones" if network == "unet" else ""
        raise UsageError(f"data.patch = {list(volume.patch)}: {network} takes {smallest} or more along each axis{hint}")
