"""The constants that the bound's theorem assumes (Theorem 3.1 of HarmoFL), estimated, and the second line of the bound.

The second line replaces the sites' squared gradients, which are measured, by what assumptions say of them:

    (1/N) Σ ‖∇F_i(θ)‖² ≤ G² + B² ‖∇F(θ)‖²            for all θ, with B ≥ 1
    (1/N) Σ ‖∇F_i(θ)‖² ≤ G² + 2βB² (F(θ) − F*)       if the F_i are convex and β-smooth

Nobody knows constants that hold for all θ. They are estimated where the sites go: at the selected model, and at the
mean of the sites' models after one further local epoch. B is 1, the least allowed; G is then the least that fits both
models. β is the largest ‖∇F_i(θ_i) − ∇F_i(θ)‖ / ‖θ_i − θ‖ over sites, θ_i after their epoch. F* is taken as 0, which no
loss here is below. Networks are not convex: the second form is shown because the theorem has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from harmofl.analysis.directions import Weights
from harmofl.analysis.drift_terms import SiteGradient
from harmofl.states import restoring


@dataclass(frozen=True)
class Point:
    """The sites' gradients and losses at one model, as training sees them."""

    mean_square: float
    """(1/N) Σ ‖∇F_i‖²."""
    squared_mean: float
    """‖∇F‖², of the mean gradient."""
    loss: float
    """F, the mean of the sites' losses."""

    @classmethod
    def of(cls, gradients: Sequence[SiteGradient]) -> Point:
        """Take the means over sites."""
        mean = torch.stack([each.mean for each in gradients]).mean(dim=0)
        losses = [each.loss for each in gradients]
        squares = [each.squared_norm for each in gradients]
        return cls(sum(squares) / len(squares), float(mean.square().sum()), sum(losses) / len(losses))


@dataclass(frozen=True)
class Constants:
    """What the theorem assumes, as estimated; B = 1."""

    beta: float
    squared_g: float
    """G²."""
    squared_g_if_convex: float
    """G² of the assumption that is made of convex functions."""


def estimate_constants(points: Sequence[Point], betas: Sequence[float]) -> Constants:
    """The least constants that fit every point; `betas`: of each site."""
    beta = max(betas)
    return Constants(
        beta=beta,
        squared_g=max(point.mean_square - point.squared_mean for point in points),
        squared_g_if_convex=max(0.0, *(point.mean_square - 2 * beta * point.loss for point in points)),
    )


def second_line(
    model: Point, constants: Constants, first: Mapping[str, float], num_steps: float, step_size: float
) -> dict[str, float]:
    """The second line of the bound at a model: as the theorem has it in general, and were the losses convex.

    `first`: the terms of the first line, of which it shares all but the gradients'.
    """
    moved = (num_steps * step_size) ** 2
    shared = first["dissimilarity"] + first["noise"]
    return {
        "in general": 4 * moved * (constants.squared_g + model.squared_mean) + shared,
        "if convex": 4 * moved * constants.squared_g_if_convex + 8 * constants.beta * moved * model.loss + shared,
    }


def estimate_beta(here: SiteGradient, there: SiteGradient, step: Weights) -> float:
    """How fast a site's gradient changes along a step, ‖∇F(θ + step) − ∇F(θ)‖ / ‖step‖; 0 if it goes nowhere."""
    length = float(torch.cat([part.flatten() for part in step]).norm())
    return float((there.mean - here.mean).norm()) / length if length else 0.0


def mean_step(steps: Sequence[Weights]) -> Weights:
    """The mean of the sites' steps: where the server's average would be."""
    return [torch.stack(list(parts)).mean(dim=0) for parts in zip(*steps, strict=True)]


@contextmanager
def moved_by(network: nn.Module, step: Weights) -> Iterator[None]:
    """For a block, a network whose weights have made a step; they are put back exactly."""
    weights: Weights = list(network.parameters())
    with restoring(weights):
        with torch.no_grad():
            for weight, part in zip(weights, step, strict=True):
                weight.add_(part)
        yield
