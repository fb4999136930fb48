"""How large a patch may be, and how coarse its voxels must be to show enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from harmofl.models.volumes import plan_strides

SMALLEST = 8
"""Voxels of a patch along an axis."""
STEP = 8
"""Patches are multiples of it along an axis, where the network does not ask for more."""
FEWEST_LEVELS = 2
"""Of a network that halves a patch."""
ENOUGH = 0.25
"""Share of a median volume that a patch should show, unless it shows the whole of what is to be found."""
AROUND = 1.25
"""Times as long as what is to be found: so much belongs into a patch."""
ROOM = 1.1
"""Times the budget that a patch may take, as lengths are rounded."""
COARSER = 1.05
COARSEST = 4.0


def weighted_quantile(values: Sequence[float], weights: Sequence[float], level: float) -> float:
    """The first of the sorted values up to which that share of the weight lies.

    >>> weighted_quantile([3.0, 1.0, 2.0], [1, 1, 4], 0.5)
    2.0
    """
    pairs = sorted(zip(values, weights, strict=True))
    total, passed = sum(weights), 0.0
    for value, weight in pairs:
        passed += weight
        if passed >= level * total - 1e-9:
            return value
    return pairs[-1][0]


def resampled(shape: Sequence[float], own: Sequence[float], spacing: Sequence[float]) -> list[float]:
    """Voxels along each axis at another spacing."""
    return [max(1.0, n * step / new) for n, step, new in zip(shape, own, spacing, strict=True)]


def fit_patch(shape: Sequence[float], spacing: Sequence[float], budget: int) -> tuple[int, int, int]:
    """The largest patch of at most so many voxels, equally long in millimetres along axes that have room for it.

    Args:
        shape: Voxels of a median volume.
        spacing: Millimetres between them.
        budget: Voxels.

    >>> fit_patch((20, 320, 320), (3.0, 0.6, 0.6), 16 * 64 * 64)
    (16, 64, 64)
    """
    low, high = 0.0, max(n * step for n, step in zip(shape, spacing, strict=True))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.prod(_cut(shape, spacing, middle)) <= budget else (low, middle)
    wanted = _cut(shape, spacing, low)
    square = math.isclose(wanted[1], wanted[2], rel_tol=0.1)
    triples = [triple for triple in product(*map(_near, wanted)) if not square or triple[1] == triple[2]]
    deep = [triple for triple in triples if len(plan_strides(triple, spacing)) >= FEWEST_LEVELS]
    fitting = [triple for triple in deep if math.prod(triple) <= ROOM * budget] or [min(deep, key=math.prod)]
    return _divisible(min(fitting, key=lambda triple: _misfit(triple, wanted)), spacing)


def _near(length: float) -> list[int]:
    """Multiples of STEP around a length, and one that a network can halve twice."""
    above = max(SMALLEST, math.ceil(length / STEP) * STEP)
    return sorted({2 * SMALLEST, *(n for n in range(above, above - 5 * STEP, -STEP) if n >= SMALLEST)})


def _misfit(patch: Sequence[int], wanted: Sequence[float]) -> float:
    return sum(abs(math.log(n / length)) for n, length in zip(patch, wanted, strict=True))


def _cut(shape: Sequence[float], spacing: Sequence[float], length: float) -> list[float]:
    return [min(max(n, SMALLEST), max(SMALLEST, length / step)) for n, step in zip(shape, spacing, strict=True)]


def _divisible(patch: Sequence[int], spacing: Sequence[float]) -> tuple[int, int, int]:
    """The nearest smaller patch that the levels of a network divide."""
    sizes = list(patch)
    for _ in range(8):
        levels = plan_strides(sizes, spacing)
        divisors = [math.prod(level[axis] for level in levels) for axis in range(3)]
        fitting = [max(divisor, n // divisor * divisor) for n, divisor in zip(sizes, divisors, strict=True)]
        if fitting == sizes:
            break
        sizes = fitting
    return sizes[0], sizes[1], sizes[2]


def coarsen(
    spacing: Sequence[float], shape: Sequence[float], budget: int, found: Sequence[float] | None
) -> tuple[list[float], tuple[int, int, int]]:
    """Make voxels longer until a patch shows a quarter of a median volume, or all of what is to be found.

    Fine axes come first: one is made coarser with the others only once it is as coarse as half of the coarsest.

    Args:
        spacing: Millimetres that the data would have.
        shape: Voxels of a median volume at it.
        budget: Voxels of a patch.
        found: Millimetres of a box around what is to be found, if that is known.

    Returns:
        The spacing and the patch.
    """
    steps, longest = list(spacing), COARSEST * max(spacing)
    while True:
        now = resampled(shape, spacing, steps)
        patch = fit_patch(now, steps, budget)
        if _shows_enough(patch, now, steps, found) or min(steps) * COARSER > longest:
            return steps, patch
        limit = max(steps) / 2
        finer = [axis for axis in range(3) if steps[axis] < limit] or [0, 1, 2]
        steps = [step * COARSER if axis in finer else step for axis, step in enumerate(steps)]


def _shows_enough(
    patch: Sequence[int], shape: Sequence[float], spacing: Sequence[float], found: Sequence[float] | None
) -> bool:
    if math.prod(patch) >= ENOUGH * math.prod(shape):
        return True
    if found is None:
        return False
    # No axis needs to be longer than the volume is.
    needed = [min(AROUND * part, n * step) for part, n, step in zip(found, shape, spacing, strict=True)]
    return all(n * step >= part for n, step, part in zip(patch, spacing, needed, strict=True))
