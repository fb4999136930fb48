"""Server rules that one bad site cannot spoil, if there are enough others in a round.

Three sites are enough for the two medians, five for the trimmed mean at 0.2, and 2 · outliers + 3 for both forms of
Krum. Each rule needs every site's update at once, and counts all sites alike. Distances are those of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from harmofl.errors import STRICT
from harmofl.methods.server_rules import ServerRule, Update, combine_entries
from harmofl.states import State


@dataclass(frozen=True)
class Median(ServerRule):
    """The median of the sites' updates, number by number (Yin et al., ICML 2018).

    With an even number of sites, the mean of the two in the middle.
    """

    needs_every_update = True
    fewest_sites = 3

    def combine(self, updates: Sequence[Update], shares: Sequence[float]) -> Update:
        """Take the median of every number."""
        return combine_entries(updates, _median)


@dataclass(frozen=True, config=STRICT)
class TrimmedMean(ServerRule):
    """The mean without the largest and the smallest updates, number by number (Yin et al., ICML 2018).

    `trimmed` is the part of the sites that is left out at each end, rounded down. It is the mean at 0.
    """

    trimmed: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    needs_every_update = True

    @property
    def fewest_sites(self) -> int:
        """Enough that one at each end is left out; without trimming it promises nothing."""
        return max(3, math.ceil(1 / self.trimmed)) if self.trimmed else 1

    def combine(self, updates: Sequence[Update], shares: Sequence[float]) -> Update:
        """Sort every number over the sites and average the middle ones."""
        cut = int(self.trimmed * len(updates))
        return combine_entries(updates, partial(_mean, cut=cut))


@dataclass(frozen=True, config=STRICT)
class Krum(ServerRule):
    """The weights of the one site that lies nearest to its nearest neighbours (Blanchard et al., NeurIPS 2017).

    `outliers` is how many bad sites it is to withstand: n − outliers − 2 neighbours count, but one at least.
    """

    outliers: Annotated[int, Field(ge=0)] = 1
    needs_every_update = True

    @property
    def fewest_sites(self) -> int:
        """The paper's n > 2 · outliers + 2."""
        return 2 * self.outliers + 3

    def combine(self, updates: Sequence[Update], shares: Sequence[float]) -> Update:
        """Choose the site with the smallest sum of squared distances."""
        return Update(updates[self.rank(updates)[0]].weights, _median_buffers(updates))

    def rank(self, updates: Sequence[Update]) -> list[int]:
        """The indices of the updates, those nearest to their neighbours first."""
        flat = torch.stack([_flatten(update) for update in updates])
        distances = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
        neighbours = max(1, len(updates) - self.outliers - 2)
        nearest = distances.sort(dim=1).values[:, 1 : 1 + neighbours]  # the first is the site itself
        ranked: list[int] = nearest.sum(dim=1).argsort(stable=True).tolist()
        return ranked


class MultiKrum(Krum):
    """The mean of all sites but the `outliers` farthest from their neighbours (Blanchard et al., NeurIPS 2017).

    Statistics are means without as many of the largest and the smallest.
    """

    def combine(self, updates: Sequence[Update], shares: Sequence[float]) -> Update:
        """Average the sites that Krum ranks first."""
        kept = sorted(self.rank(updates)[: max(1, len(updates) - self.outliers)])
        weights = combine_entries([Update(updates[place].weights, {}) for place in kept], _mean).weights
        cut = min(self.outliers, (len(updates) - 1) // 2)
        every = [Update({}, update.buffers) for update in updates]
        return Update(weights, combine_entries(every, partial(_mean, cut=cut)).buffers)


@dataclass(frozen=True, config=STRICT)
class GeometricMedian(ServerRule):
    """The point whose distances to all updates sum to the least, found by Weiszfeld's steps (Pillutla et al., 2022)."""

    iterations: Annotated[int, Field(ge=1)] = 32
    needs_every_update = True
    fewest_sites = 3

    def combine(self, updates: Sequence[Update], shares: Sequence[float]) -> Update:
        """Average again and again, each site weighted by the inverse of its distance."""
        flat = torch.stack([_flatten(update) for update in updates])
        centre = _median(flat)  # not the mean, which one update of 1e30 would carry away for good
        for _ in range(self.iterations):
            closeness = 1 / (flat - centre).norm(dim=1).clamp_min(1e-12)
            weights = closeness / closeness.sum()
            centre = weights @ flat
        combined = combine_entries(updates, lambda values: torch.tensordot(weights, values, dims=1))
        return Update(combined.weights, _median_buffers(updates))


def _median(values: Tensor) -> Tensor:
    ordered, count = values.sort(dim=0).values, len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _mean(values: Tensor, cut: int = 0) -> Tensor:
    """The mean without a number of the largest and of the smallest."""
    return (values.sort(dim=0).values[cut : len(values) - cut] if cut else values).mean(dim=0)


def _median_buffers(updates: Sequence[Update]) -> State:
    """Statistics by their median: a site near to the others in its weights could still send any statistics."""
    return combine_entries([Update({}, update.buffers) for update in updates], _median).buffers


def _flatten(update: Update) -> Tensor:
    """The trainable weights as one vector: statistics of batch norm layers differ between honest sites too."""
    return torch.cat([tensor.flatten() for tensor in update.weights.values()])
