"""The range of what a piece may send, whatever a site's images: differential privacy must know it beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from harmofl.states import State


@dataclass(frozen=True)
class Bound:
    """A ball that holds what a piece would send of any single image with intensities in [0, 1].

    It then holds every average over images, too. It must follow from the intensities' range alone, never from images:
    the noise that hides a site, or an image, is measured by it.

    Args:
        centre: What it would send of a grey image, all 1/2: the same names and shapes as what it sends.
        radius: The largest Euclidean distance from there, of all its tensors together.
    """

    centre: State
    radius: float
