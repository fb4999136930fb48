"""How the server combines what the sites send.

Every rule is this formula with three choices,

    θ ← θ + move((Σ pᵢ aᵢ) · Σ pᵢ (θᵢ − θ)/aᵢ),

`effective_steps` gives aᵢ and `move` the step; a rule that needs every site's update at once, such as a median, puts
`combine` in the place of the sum. Rules act on trainable weights; floating-point buffers take the weighted mean, or
what `combine` makes of them, and integer buffers the maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from harmofl.errors import STRICT
from harmofl.states import State


@plain_dataclass(frozen=True)
class Update:
    """What one site changed in a round: differences to the global model, in double precision."""

    weights: State
    """Trainable weights."""
    buffers: State
    """Floating-point buffers, such as the statistics of batch norm layers."""


class ServerRule:
    """What a server does with its sites' updates: the base of all rules, and the plain average.

    Example:
        >>> class Half(ServerRule):
        ...     def move(self, update, memory, learning_rate):
        ...         return {name: 0.5 * tensor for name, tensor in update.items()}, {}
        >>> Half().move({"w": torch.tensor([4.0])}, {}, 1.0)
        ({'w': tensor([2.])}, {})
    """

    needs_every_update: ClassVar[bool] = False
    """Whether `combine` must see all updates. Otherwise sums are enough: memory stays flat, however many sites."""

    @property
    def fewest_sites(self) -> int:
        """How many answers it needs to keep its promise; with fewer, the record of the round has a warning."""
        return 1

    def effective_steps(self, num_steps: int, momentum: float) -> float:
        """Return aᵢ: what a site's update is divided by before averaging.

        Args:
            num_steps: The optimizer steps that the site made.
            momentum: Of its SGD; 0 for Adam.
        """
        return 1.0

    def combine(self, updates: Sequence[Update], shares: Sequence[float]) -> Update:
        """Make one update of all; called only if `needs_every_update`.

        Args:
            updates: In the order of the sites' names.
            shares: The sites' weights pᵢ, which sum to 1.
        """
        raise NotImplementedError(f"{type(self).__name__} has no combine(), but says that it needs every update")

    def move(self, update: State, memory: State, learning_rate: float) -> tuple[State, State]:
        """Make the server's step.

        Args:
            update: The combined update of the trainable weights, in double precision.
            memory: What the rule returned in the round before; empty at first.
            learning_rate: `federation.server_learning_rate`.

        Returns:
            The change of the global weights, and what the rule remembers for the next round.
        """
        return {name: learning_rate * tensor for name, tensor in update.items()}, {}

    def move_for(self, update: State, memory: State, learning_rate: float, answered: float) -> tuple[State, State]:
        """Make the server's step if it depends on how many sites answered; calls `move` unless a rule overrides it.

        `answered`: the part of all sites that answered.
        """
        return self.move(update, memory, learning_rate)


def combine_entries(updates: Sequence[Update], function: Callable[[Tensor], Tensor]) -> Update:
    """Combine updates entry by entry; the function gets (sites, …) and returns (…).

    >>> updates = [Update({"w": torch.tensor([value])}, {}) for value in (1.0, 2.0, 9.0)]
    >>> combine_entries(updates, lambda values: values.median(dim=0).values).weights
    {'w': tensor([2.])}
    """

    def combined(states: Sequence[State]) -> State:
        return {name: function(torch.stack([state[name] for state in states])) for name in states[0]}

    return Update(combined([each.weights for each in updates]), combined([each.buffers for each in updates]))


@dataclass(frozen=True)
class Average(ServerRule):
    """The weighted mean of the sites' models."""


@dataclass(frozen=True)
class NormalizedAverage(ServerRule):
    """Updates divided by the number of effective local steps, so that busy sites do not pull harder."""

    def effective_steps(self, num_steps: int, momentum: float) -> float:
        """Return [τ − ρ(1 − ρ^τ)/(1 − ρ)]/(1 − ρ) for τ steps of SGD with momentum ρ."""
        if momentum == 0:
            return float(num_steps)
        return (num_steps - momentum * (1 - momentum**num_steps) / (1 - momentum)) / (1 - momentum)


@dataclass(frozen=True, config=STRICT)
class ServerMomentum(ServerRule):
    """Momentum on the averaged update: m ← β · m + update, θ ← θ + rate · m."""

    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def move(self, update: State, memory: State, learning_rate: float) -> tuple[State, State]:
        """Add the update to the momentum and move by that."""
        momentum = {
            name: self.server_momentum * memory.get(name, torch.zeros_like(tensor)) + tensor
            for name, tensor in update.items()
        }
        return {name: learning_rate * tensor for name, tensor in momentum.items()}, momentum


@dataclass(frozen=True, config=STRICT)
class AdaptiveMoments(ServerRule):
    """Adam on the averaged update, as if it were a gradient: no bias correction."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Field(gt=0)] = 1e-3

    def move(self, update: State, memory: State, learning_rate: float) -> tuple[State, State]:
        """Return rate · m/(√v + τ), with m and v the running first and second moments."""
        change, moments = {}, {}
        for name, tensor in update.items():
            zero = torch.zeros_like(tensor)
            first = self.beta1 * memory.get(f"first.{name}", zero) + (1 - self.beta1) * tensor
            second = self.beta2 * memory.get(f"second.{name}", zero) + (1 - self.beta2) * tensor.square()
            change[name] = learning_rate * first / (second.sqrt() + self.tau)
            moments[f"first.{name}"], moments[f"second.{name}"] = first, second
        return change, moments
