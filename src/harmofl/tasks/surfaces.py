"""Distances between the surfaces of two masks, from MONAI's metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 2.0
"""Millimetres by which a surface may be off and still count as right in the surface Dice."""


@dataclass(frozen=True)
class Surfaces:
    """What is known of the surfaces in some images."""

    distances: dict[str, Tensor]
    """By name, those of all images and foreground classes that truth and prediction both have."""
    missing: int
    """The images and classes that only one of both has: there is no distance."""


def surface_distances(found: Tensor, truth: Tensor, num_classes: int, spacings: Tensor | None) -> Surfaces:
    """Measure every image and foreground class, one at a time, as masks of volumes are large.

    `found` and `truth`: classes, (N, *spatial). `spacings`: of volumes, in millimetres; then there are the 95th
    percentile, the mean and the part within the tolerance, else the first in pixels.
    """
    each: list[dict[str, Tensor]] = []
    missing = 0
    for place in range(len(found)):
        for number in range(1, num_classes):
            one, other = found[place] == number, truth[place] == number
            if one.any() and other.any():
                each.append(measure(one[None, None], other[None, None], None if spacings is None else spacings[place]))
            elif one.any() or other.any():
                missing += 1
    return Surfaces({name: torch.cat([values[name] for values in each]) for name in (each[0] if each else ())}, missing)


def measure(found: Tensor, truth: Tensor, spacing: Tensor | None) -> dict[str, Tensor]:
    """The distances between two masks, (1, 1, *spatial), each of one number."""
    from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance, compute_surface_dice

    def compute(metric: Callable[..., Any], **options: Any) -> Tensor:
        with warnings.catch_warnings():  # MONAI calls its own deprecated function
            warnings.simplefilter("ignore")
            return torch.as_tensor(metric(found, truth, include_background=True, **options)).flatten()

    if spacing is None:
        return {"hd95": compute(compute_hausdorff_distance, percentile=95)}
    lengths = [spacing.tolist()]
    return {
        "hd95_mm": compute(compute_hausdorff_distance, percentile=95, spacing=lengths),
        "assd_mm": compute(compute_average_surface_distance, symmetric=True, spacing=lengths),
        "surface_dice": compute(compute_surface_dice, class_thresholds=[TOLERANCE], spacing=lengths),
    }
