"""How the server combines what the sites send.

Every rule is two numbers' worth of freedom around one formula,

    θ ← θ + move((Σ pᵢ aᵢ) · Σ pᵢ (θᵢ − θ)/aᵢ),

with `effective_steps` giving aᵢ and `move` the step. They act on trainable parameters; floating buffers take the
weighted mean, integer buffers the maximum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Protocol

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from harmofl.errors import STRICT
from harmofl.states import State


class ServerRule(Protocol):
    """What a server does with its sites' updates."""

    def effective_steps(self, num_steps: int, momentum: float) -> float:
        """Return aᵢ: what a site's update is divided by before averaging."""

    def move(self, update: State, moments: State, learning_rate: float) -> tuple[State, State]:
        """Return the change of the global weights and the rule's new memory."""


@dataclass(frozen=True)
class Average:
    """The weighted mean of the sites' models."""

    def effective_steps(self, num_steps: int, momentum: float) -> float:
        """Return 1: every update counts as it is."""
        return 1.0

    def move(self, update: State, moments: State, learning_rate: float) -> tuple[State, State]:
        """Go all the way at learning rate 1."""
        return {name: learning_rate * tensor for name, tensor in update.items()}, {}


@dataclass(frozen=True)
class NormalizedAverage(Average):
    """Updates divided by the number of effective local steps, so that busy sites do not pull harder."""

    def effective_steps(self, num_steps: int, momentum: float) -> float:
        """Return [τ − ρ(1 − ρ^τ)/(1 − ρ)]/(1 − ρ) for τ steps of SGD with momentum ρ."""
        if momentum == 0:
            return float(num_steps)
        return (num_steps - momentum * (1 - momentum**num_steps) / (1 - momentum)) / (1 - momentum)


@dataclass(frozen=True, config=STRICT)
class AdaptiveMoments(Average):
    """Adam on the averaged update, as if it were a gradient: no bias correction."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Field(gt=0)] = 1e-3

    def move(self, update: State, moments: State, learning_rate: float) -> tuple[State, State]:
        """Return rate · m/(√v + τ), with m and v the running first and second moments."""
        change, new_moments = {}, {}
        for name, tensor in update.items():
            zero = torch.zeros_like(tensor)
            first = self.beta1 * moments.get(f"first.{name}", zero) + (1 - self.beta1) * tensor
            second = self.beta2 * moments.get(f"second.{name}", zero) + (1 - self.beta2) * tensor.square()
            change[name] = learning_rate * first / (second.sqrt() + self.tau)
            new_moments[f"first.{name}"], new_moments[f"second.{name}"] = first, second
        return change, new_moments


class Aggregation:
    """Folds sites' states into the next global state, one at a time: memory does not grow with their number.

    Sums run in double precision, so that one site alone gives back exactly its own weights.
    """

    def __init__(
        self,
        rule: ServerRule,
        state: Mapping[str, Tensor],
        trainable: Collection[str],
        pooled: Mapping[str, str] | None = None,
    ) -> None:
        self._rule = rule
        self._state = state
        # From a running variance to its running mean, where variances are pooled: each site's second moment is
        # summed, so that the result is the mean of the variances plus the variance of the means.
        self._pooled = {name: mean for name, mean in (pooled or {}).items() if name in state and mean in state}
        self._trainable = frozenset(trainable) & state.keys()
        self._sums: State = {
            name: torch.zeros_like(tensor, dtype=torch.float64)
            for name, tensor in state.items()
            if tensor.is_floating_point()
        }
        self._largest: State = {}
        self._total_weight = 0.0
        self._total_steps = 0.0
        self._total_share = 0.0

    def add(self, site_state: Mapping[str, Tensor], weight: float, num_steps: int, momentum: float) -> None:
        """Take one site's state, with its weight pᵢ before normalization."""
        steps = self._rule.effective_steps(num_steps, momentum)
        self._total_weight += weight
        self._total_steps += weight * steps
        self._total_share += weight / steps
        for name in self._state:
            if name in self._sums:
                share = weight / steps if name in self._trainable else weight
                self._sums[name].add_(self._summed(name, site_state), alpha=share)
            else:
                largest = self._largest.get(name, site_state[name])
                self._largest[name] = torch.maximum(largest, site_state[name])

    def finish(self, moments: State, learning_rate: float) -> tuple[State, State]:
        """Return the new global state and the server rule's new memory."""
        means = {name: total / self._total_weight for name, total in self._sums.items()}
        # Sites that agree leave a difference of rounding errors, which may lie below zero.
        means |= {name: (means[name] - means[mean].square()).clamp_min(0) for name, mean in self._pooled.items()}
        targets = {name: self._target(name, mean) for name, mean in means.items() if name in self._trainable}
        update = {name: target - self._state[name].double() for name, target in targets.items()}
        change, new_moments = self._rule.move(update, moments, learning_rate)
        # Seen from the target, a rule that goes all the way adds exactly nothing; seen from the start it would round.
        moved = {name: targets[name] + (change[name] - update[name]) for name in targets}
        results = self._largest | means | moved
        return {name: results[name].to(start.dtype) for name, start in self._state.items()}, new_moments

    def _summed(self, name: str, site_state: Mapping[str, Tensor]) -> Tensor:
        value = site_state[name].double()
        return value + site_state[self._pooled[name]].double().square() if name in self._pooled else value

    def _target(self, name: str, mean: Tensor) -> Tensor:
        """θ + (Σ pᵢ aᵢ) · Σ pᵢ (θᵢ − θ)/aᵢ, from the mean of θᵢ/aᵢ."""
        mean_steps = self._total_steps / self._total_weight
        rest = 1 - mean_steps * self._total_share / self._total_weight
        return mean_steps * mean + rest * self._state[name].double()


class Mean:
    """The plain mean of the sites' measurements, whatever the sites' weights."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: State = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, measurement: Mapping[str, Tensor]) -> None:
        """Take one site's measurement; an empty one does not count."""
        if not measurement:
            return
        self.count += 1
        for name, tensor in measurement.items():
            self._dtypes[name] = tensor.dtype
            self._sums[name] = self._sums.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()

    def value(self) -> State:
        """The mean, or nothing if there was nothing."""
        return {name: (total / self.count).to(self._dtypes[name]) for name, total in self._sums.items()}
