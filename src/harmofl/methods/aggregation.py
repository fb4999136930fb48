"""From the sites' states to the next global state, by a server rule."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from harmofl.displays.profiling import timed
from harmofl.methods.server_rules import ServerRule, Update
from harmofl.states import State

FEWEST_SITES = 3
"""Of fewer, nobody can say which one counts too many steps."""


def start_aggregation(
    rule: ServerRule,
    state: Mapping[str, Tensor],
    trainable: Collection[str],
    pooled: Mapping[str, str] | None = None,
) -> Aggregation:
    """Begin a round with the global state; `trainable`: which of its entries are weights.

    `pooled`: from each running variance to its running mean, where variances are pooled over sites.
    """
    if rule.needs_every_update:
        return GatheredUpdates(rule, state, trainable)
    return StreamedSums(rule, state, trainable, pooled)


class Aggregation(ABC):
    """One round of the server: takes the sites' states one by one, then makes the next global state."""

    def __init__(self, rule: ServerRule, state: Mapping[str, Tensor], trainable: Collection[str]) -> None:
        self.rule = rule
        self.state = state
        self.trainable = frozenset(trainable) & state.keys()
        self.floating = [name for name, tensor in state.items() if tensor.is_floating_point()]
        self._largest: State = {}
        self._counted: list[tuple[float, float]] = []
        """Of each site its weight, and what its update is divided by."""

    def add(self, site_state: Mapping[str, Tensor], weight: float, num_steps: int, momentum: float) -> None:
        """Take one site's state, with its weight pᵢ before normalization."""
        for name in self.state.keys() - set(self.floating):
            largest = self._largest.get(name, site_state[name])
            self._largest[name] = torch.maximum(largest, site_state[name])
        steps = self.rule.effective_steps(num_steps, momentum)
        self._counted.append((weight, steps))
        self.add_floating(site_state, weight, steps)

    def mean_steps(self) -> float:
        """The mean Σ pᵢ aᵢ, in which no site counts more steps than all others together.

        Every site's update is multiplied by it, and what a site says of its steps, nobody can check.
        """
        ordered = sorted(steps for _, steps in self._counted)
        most = math.fsum(ordered[:-1]) if len(ordered) >= FEWEST_SITES else math.inf
        total_steps, total_weight = 0.0, 0.0
        for weight, steps in self._counted:  # not by sum(), whose last bit depends on Python's version
            total_steps += weight * min(steps, most)
            total_weight += weight
        return total_steps / total_weight

    @abstractmethod
    def add_floating(self, site_state: Mapping[str, Tensor], weight: float, steps: float) -> None:
        """Take the floating-point entries of one site; `steps`: what its update is divided by."""

    @abstractmethod
    def targets(self) -> State:
        """The combined value of every floating-point entry, in double precision."""

    @timed("aggregation")
    def finish(self, memory: State, learning_rate: float, answered: float = 1.0) -> tuple[State, State]:
        """Return the new global state and the server rule's new memory; `answered`: the part of all sites that did."""
        targets = self.targets()
        update = {name: targets[name] - self.state[name].double() for name in self.floating if name in self.trainable}
        change, new_memory = self.rule.move_for(update, memory, learning_rate, answered)
        # Seen from the target, a rule that goes all the way adds exactly nothing; seen from the start it would round.
        moved = {name: targets[name] + (change[name] - update[name]) for name in update}
        results = self._largest | targets | moved
        return {name: results[name].to(start.dtype) for name, start in self.state.items()}, new_memory


class StreamedSums(Aggregation):
    """Sums only: memory does not grow with the number of sites.

    They run in double precision, so that one site alone gives back exactly its own weights.
    """

    def __init__(
        self,
        rule: ServerRule,
        state: Mapping[str, Tensor],
        trainable: Collection[str],
        pooled: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(rule, state, trainable)
        # Each site's second moment is summed, so that the result is the mean of the variances plus the variance of
        # the means.
        self._pooled = {name: mean for name, mean in (pooled or {}).items() if name in state and mean in state}
        self.sums = {name: torch.zeros_like(state[name], dtype=torch.float64) for name in self.floating}
        self._total_weight = 0.0
        self._total_share = 0.0

    def add_floating(self, site_state: Mapping[str, Tensor], weight: float, steps: float) -> None:
        """Add one site's entries to the sums."""
        self._add_shares(weight, steps)
        for name, total in self.sums.items():
            share = weight / steps if name in self.trainable else weight
            total.add_(self._summand(name, site_state), alpha=share)

    def count_site(self, weight: float, num_steps: int, momentum: float) -> None:
        """Count a site whose entries come in a sum, by `add_sums`."""
        steps = self.rule.effective_steps(num_steps, momentum)
        self._counted.append((weight, steps))
        self._add_shares(weight, steps)

    def add_sums(self, sums: Mapping[str, Tensor], num_sites: int) -> None:
        """Add what several sites would have added; whole numbers, whose largest is not known, take their rounded mean.

        Args:
            sums: Of the `sums` that each site had after adding its own state, and of its whole numbers.
            num_sites: How many.
        """
        for name, total in sums.items():
            if name in self.sums:
                self.sums[name] += total
            else:
                self._largest[name] = (total / num_sites).round()

    def _add_shares(self, weight: float, steps: float) -> None:
        self._total_weight += weight
        self._total_share += weight / steps

    def targets(self) -> State:
        """Means, rescaled for weights."""
        means = {name: total / self._total_weight for name, total in self.sums.items()}
        # Sites that agree leave a difference of rounding errors, which may lie below zero.
        means |= {name: (means[name] - means[mean].square()).clamp_min(0) for name, mean in self._pooled.items()}
        return {name: self._rescale(name, mean) if name in self.trainable else mean for name, mean in means.items()}

    def _summand(self, name: str, site_state: Mapping[str, Tensor]) -> Tensor:
        value = site_state[name].double()
        return value + site_state[self._pooled[name]].double().square() if name in self._pooled else value

    def _rescale(self, name: str, mean: Tensor) -> Tensor:
        """θ + (Σ pᵢ aᵢ) · Σ pᵢ (θᵢ − θ)/aᵢ, from the mean of θᵢ/aᵢ."""
        mean_steps = self.mean_steps()
        rest = 1 - mean_steps * self._total_share / self._total_weight
        return mean_steps * mean + rest * self.state[name].double()


class GatheredUpdates(Aggregation):
    """Every site's update, for rules that need them all: memory grows with the number of sites."""

    def __init__(self, rule: ServerRule, state: Mapping[str, Tensor], trainable: Collection[str]) -> None:
        super().__init__(rule, state, trainable)
        self._updates: list[Update] = []
        self._weights: list[float] = []

    def add_floating(self, site_state: Mapping[str, Tensor], weight: float, steps: float) -> None:
        """Keep one site's differences to the global state, its weights divided by its steps."""
        changes = {name: site_state[name].double() - self.state[name].double() for name in self.floating}
        weights = {name: change / steps for name, change in changes.items() if name in self.trainable}
        buffers = {name: change for name, change in changes.items() if name not in self.trainable}
        self._updates.append(Update(weights, buffers))
        self._weights.append(weight)

    def targets(self) -> State:
        """The global state with the combined update."""
        total = sum(self._weights)
        update = self.rule.combine(self._updates, [weight / total for weight in self._weights])
        mean_steps = self.mean_steps()
        changes = {name: mean_steps * change for name, change in update.weights.items()} | update.buffers
        return {name: self.state[name].double() + changes[name] for name in self.floating}
