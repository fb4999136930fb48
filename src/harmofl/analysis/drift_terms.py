"""What the bound on the sites' drift is made of (Theorem 3.1 of HarmoFL), measured at a model.

The bound on Γ = (1/KN) Σ_k Σ_i E‖θ_{i,k} − θ‖² after K local steps of size η is the sum of three terms:

    4K²η² · mean_i ‖∇F_i(θ)‖²  +  4K²η² · ε²(N − 1)²/N²  +  2Kη²σ²

The theorem is not taken as proven here: its terms are shown beside the drift that was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harmofl.analysis.directions import flatten
from harmofl.analysis.loaded_runs import LoadedRun
from harmofl.analysis.losses import Batch, as_in_training
from harmofl.data.images import Site
from harmofl.tasks.losses import Loss


@dataclass(frozen=True)
class SiteGradient:
    """A site's gradient ∇F_i at a model, and the variance σ² = E‖g_i − ∇F_i‖² of its mini-batches' gradients."""

    mean: Tensor
    variance: float
    loss: float = 0.0
    """F_i, as training sees it."""

    @property
    def squared_norm(self) -> float:
        """‖∇F_i‖²."""
        return float(self.mean.square().sum())


def site_gradient(network: nn.Module, batches: Iterable[Batch], loss: Loss) -> SiteGradient:
    """The gradients that the site's steps would follow, batch norm included; a batch counts by its images."""
    weights = list(network.parameters())
    mean, variance, total, seen = torch.zeros((), device=weights[0].device), 0.0, 0.0, 0
    with as_in_training(network):
        for inputs, targets in batches:
            value = loss(network(inputs), targets)
            gradient = flatten(list(torch.autograd.grad(value, weights)))
            total += len(inputs) * float(value.detach())
            # Welford's update: the difference of two large sums would lose the variance of a small one.
            seen += len(inputs)
            distance = gradient - mean
            mean = mean + distance * (len(inputs) / seen)
            variance += len(inputs) * float((distance * (gradient - mean)).sum())
    return SiteGradient(mean, variance / seen, total / seen)


def gradient_at(run: LoadedRun, site: Site, seed: int) -> SiteGradient:
    """A site's gradient at a run's selected model, on all its training images."""
    batches = run.batches(site, len(site.train), seed)
    return site_gradient(run.models[site.name].network, batches, run.loss)


def gradient_distances(gradients: Sequence[SiteGradient]) -> Tensor:
    """‖∇F_i − ∇F_j‖ for every two sites (N, N); the largest is ε."""
    return torch.stack([torch.stack([(one.mean - other.mean).norm() for other in gradients]) for one in gradients])


def bound(
    squared_norms: Sequence[float], variance: float, epsilon: float, num_steps: float, step_size: float
) -> Mapping[str, float]:
    """The three terms of the bound on the drift, after some local steps of plain gradient descent."""
    num_sites = len(squared_norms)
    moved = (num_steps * step_size) ** 2
    return {
        "gradient": 4 * moved * sum(squared_norms) / num_sites,
        "dissimilarity": 4 * moved * (epsilon * (num_sites - 1) / num_sites) ** 2,
        "noise": 2 * num_steps * step_size**2 * variance,
    }
