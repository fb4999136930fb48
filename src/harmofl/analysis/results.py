"""A landscape as plain arrays. R runs, S sites, E local epochs, P points along an axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harmofl.analysis.losses import Array
from harmofl.errors import UsageError


@dataclass(frozen=True)
class Options:
    """How a landscape is computed."""

    points: int = 0
    """Along each axis of the random planes; odd, so that the model itself is one of them. 0: as many as there is time
    for, from 9 to 17."""
    span: float = 0.1
    """How far the near plane reaches, in units of each filter's norm."""
    local_epochs: int = 3
    images: int = 0
    """Per site; 0: as many as there is time for, from 8 to 128."""
    directions: int = 20
    """Random directions over which the sharpness is a mean."""
    growths: int = 2
    """How often a plane may double its reach."""
    seed: int = 0

    def __post_init__(self) -> None:
        checks = {
            "points": (self.points == 0 or (self.points >= 9 and self.points % 2 == 1), "an odd number from 9, or 0"),
            "span": (0 < self.span <= 10, "above 0 and up to 10"),
            "local_epochs": (self.local_epochs >= 2, "2 or more, as a plane needs two steps"),
            "images": (self.images >= 0, "0 (chosen by the network's size) or more"),
            "directions": (self.directions >= 2, "2 or more"),
            "growths": (0 <= self.growths <= 4, "from 0 to 4"),
            "seed": (self.seed >= 0, "0 or more"),
        }
        for name, (is_right, allowed) in checks.items():
            if not is_right:
                raise UsageError(f"{name} = {getattr(self, name)}: must be {allowed}")

    @property
    def radius(self) -> float:
        """Where sharpness is measured: as far as the near plane reaches."""
        return self.span


@dataclass(frozen=True)
class View:
    """The losses on one plane through every run's model."""

    name: str
    axis: Array
    """(P,): the coordinates along both axes."""
    losses: Array
    """(R, S, P, P): [second coordinate, first coordinate]."""
    paths: Array
    """(R, S, E + 1, 2): the sites' paths, from the model (0, 0), projected into the plane."""
    shares: Array
    """(R, S): the part of the path's last step from the model that lies in the plane, ‖projection‖ / ‖step‖."""

    @property
    def span(self) -> float:
        """How far the plane reaches."""
        return float(self.axis[-1])

    @property
    def mean(self) -> Array:
        """(R, P, P): the mean loss over sites."""
        return np.asarray(self.losses.mean(axis=1))

    @property
    def is_open(self) -> NDArray[np.bool_]:
        """(R, S + 1): whether the lowest loss lies at the edge, at each site and, last, of the mean over sites."""
        return is_lowest_at_edge(self.losses)


def is_lowest_at_edge(losses: Array) -> NDArray[np.bool_]:
    """(R, S + 1): whether the lowest of losses (R, S, P, P) lies at the edge, at each site and, last, of their mean."""
    panels = np.concatenate([losses, losses.mean(axis=1, keepdims=True)], axis=1)
    inside = panels[..., 1:-1, 1:-1].min(axis=(-2, -1))
    return np.asarray(inside > panels.min(axis=(-2, -1)))


@dataclass(frozen=True)
class Landscape:
    """Everything that figures and tables show."""

    runs: tuple[str, ...]
    sites: tuple[str, ...]
    loss_name: str
    num_images: tuple[int, ...]
    """Of each site."""
    radius: float
    views: Mapping[str, View]
    rises: Array
    """(R, S, D): how much the loss rises at the radius in each random direction."""
    squared_gradients: Array
    """(R, S): ‖∇F_i‖²."""
    variances: Array
    """(R, S): σ² over mini-batches."""
    distances: Array
    """(R, S, S): ‖∇F_i − ∇F_j‖; a run's largest is ε."""
    drifts: Array
    """(R, S): Γ_i of the first further local epoch."""
    num_steps: Array
    """(R, S): its steps K."""
    step_sizes: Array
    """(R,): its learning rate."""
    betas: Array
    """(R, S): how fast a site's gradient changes along that epoch."""
    points: Array
    """(R, 2, 3): at the model, and at the mean of the sites' models after that epoch: mean ‖∇F_i‖², ‖∇F‖² and F."""

    @property
    def centres(self) -> Array:
        """(R, S): the losses of the models themselves."""
        view = next(iter(self.views.values()))
        middle = len(view.axis) // 2
        return view.losses[:, :, middle, middle]

    def sharpness(self) -> tuple[Array, Array]:
        """(R, S + 1): the mean rise at each site and, last, over sites; and its standard error over directions."""
        rises = np.concatenate([self.rises, self.rises.mean(axis=1, keepdims=True)], axis=1)
        return rises.mean(axis=2), rises.std(axis=2, ddof=1) / np.sqrt(rises.shape[2])

    def farthest_pair(self) -> tuple[int, int]:
        """The two sites whose gradients differ most at the first run's model."""
        first, second = np.unravel_index(int(self.distances[0].argmax()), self.distances[0].shape)
        return int(min(first, second)), int(max(first, second))
