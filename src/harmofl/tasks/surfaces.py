"""Distances between the surfaces of two masks, from MONAI's metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 2.0
"""Millimetres by which a surface may be off and still count as right in the surface Dice."""

Distances = dict[str, Tensor]


def surface_distances(found: Tensor, truth: Tensor, spacings: Tensor | None) -> Distances:
    """The distances of all images and foreground classes that truth and prediction both have.

    `found` and `truth`: (N, classes, *spatial), one-hot. `spacings`: of volumes, in millimetres; then there are the
    95th percentile, the mean and the part within the tolerance, else the first in pixels.
    """
    from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance, compute_surface_dice

    both = found[:, 1:].flatten(2).any(dim=2) & truth[:, 1:].flatten(2).any(dim=2)
    images = both.any(dim=1)
    if not images.any():
        return {}

    def measure(compute: Callable[..., Any], **options: Any) -> Tensor:
        with warnings.catch_warnings():  # MONAI calls its own deprecated function, and warns of empty classes
            warnings.simplefilter("ignore")
            distances = compute(found[images], truth[images], **options)
        chosen: Tensor = torch.as_tensor(distances)[both[images]]
        return chosen

    if spacings is None:
        return {"hd95": measure(compute_hausdorff_distance, percentile=95)}
    spacing = spacings[images].tolist()
    tolerances = [TOLERANCE] * (found.shape[1] - 1)
    return {
        "hd95_mm": measure(compute_hausdorff_distance, percentile=95, spacing=spacing),
        "assd_mm": measure(compute_average_surface_distance, symmetric=True, spacing=spacing),
        "surface_dice": measure(compute_surface_dice, class_thresholds=tolerances, spacing=spacing),
    }
