"""How far apart hospitals look, from moments of their images' descriptions: a linear probe without a single image.

A linear discriminant is computed from one half of every hospital's patients, and guesses the hospital of the other
half, whose descriptions are taken to be normally distributed with their own mean and covariance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harmofl.analysis.appearance import PERCENTILES, RINGS, SMALLEST_SPREAD, Probe
from harmofl.analysis.survey import Moments

DRAWS = 4000
"""Points that stand for a hospital's other half."""
PER_CHANNEL = 3 + len(PERCENTILES) + RINGS
FIRST_RING = 3 + len(PERCENTILES)

Halves = Mapping[str, Sequence[Moments]]
"""The two halves of each hospital."""


@dataclass(frozen=True)
class _Half:
    """All hospitals' means (S, K) and covariances (S, K, K)."""

    means: Tensor
    covariances: Tensor
    images: int

    @classmethod
    def of(cls, moments: Sequence[Moments], change: Tensor) -> _Half:
        means = torch.tensor([each.mean for each in moments], dtype=torch.float64) @ change.T
        covariances = torch.tensor([each.covariance for each in moments], dtype=torch.float64)
        return cls(means, change @ covariances @ change.T, sum(each.images for each in moments))

    def discriminant(self) -> tuple[Tensor, Tensor]:
        """Weights (K, S) and what is added, of Fisher's linear discriminant with a shrunk covariance."""
        within = self.covariances.mean(0)
        within = within + SMALLEST_SPREAD**2 * torch.eye(len(within), dtype=within.dtype)
        shrinkage = min(0.5, len(within) / max(1, self.images))
        within = (1 - shrinkage) * within + shrinkage * torch.diag(within.diagonal())
        weights = torch.linalg.solve(within, self.means.T)
        return weights, -0.5 * (self.means * weights.T).sum(1)

    def guessed_right(self, weights: Tensor, added: Tensor) -> Tensor:
        """The share of each hospital's points (S,) to which the discriminant gives the highest score."""
        generator = torch.Generator().manual_seed(0)
        shares = []
        for site, (mean, covariance) in enumerate(zip(self.means, self.covariances, strict=True)):
            spread, directions = torch.linalg.eigh(weights.T @ covariance @ weights)
            noise = torch.randn(DRAWS, len(spread), dtype=torch.float64, generator=generator)
            scores = mean @ weights + added + noise * spread.clamp_min(0).sqrt() @ directions.T
            shares.append((scores.argmax(1) == site).double().mean())
        return torch.stack(shares)


def probe_moments(halves: Halves, change: Tensor | None = None) -> Probe:
    """How often the hospital is guessed right, each half once by the discriminant of the other.

    Args:
        halves: Moments of two halves of each hospital's patients.
        change: (L, K), applied to every description first; nothing if None.
    """
    length = len(next(iter(halves.values()))[0].mean)
    change = torch.eye(length, dtype=torch.float64) if change is None else change
    first, second = (_Half.of([moments[side] for moments in halves.values()], change) for side in (0, 1))
    shares = (second.guessed_right(*first.discriminant()) + first.guessed_right(*second.discriminant())) / 2
    return Probe(tuple(shares.tolist()), folds=2)


def without_mean(length: int) -> Tensor:
    """What band dc does to a description: all means alike, percentiles moved by as much, all else as it was."""
    rows = torch.eye(length, dtype=torch.float64)
    for start in range(0, length, PER_CHANNEL):
        rows[start + 3 : start + FIRST_RING, start] -= 1
    kept = [row for row in range(length) if row % PER_CHANNEL]
    return rows[kept]


ASPECTS: Mapping[str, tuple[int, int]] = {
    "brightness": (0, 1),
    "contrast": (1, 2),
    "coarse structure": (FIRST_RING, FIRST_RING + 2),
    "sharpness and noise": (PER_CHANNEL - 4, PER_CHANNEL),
}
"""Columns of a channel's description that stand for what people see."""


def differences(halves: Halves) -> dict[str, dict[str, float]]:
    """For each hospital and aspect, how far its mean is from that of the others, in spreads of single images."""
    both = [_both(moments) for moments in halves.values()]
    means = torch.stack([mean for mean, _ in both])
    spread = torch.stack([variance for _, variance in both]).mean(0).sqrt().clamp_min(SMALLEST_SPREAD)
    count = len(means)
    apart = (means - means.sum(0)) / max(1, count - 1) + means if count > 1 else means - means
    scaled = (apart / spread).view(count, -1, PER_CHANNEL)
    return {
        site: {name: round(float(scaled[row, :, start:stop].mean()), 2) for name, (start, stop) in ASPECTS.items()}
        for row, site in enumerate(halves)
    }


def _both(moments: Sequence[Moments]) -> tuple[Tensor, Tensor]:
    """Mean and variances of both halves together."""
    counts = torch.tensor([float(half.images) for half in moments], dtype=torch.float64)
    shares = (counts / counts.sum())[:, None]
    means = torch.tensor([half.mean for half in moments], dtype=torch.float64)
    variances = torch.stack([torch.tensor(half.covariance, dtype=torch.float64).diagonal() for half in moments])
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean).square())).sum(0)
