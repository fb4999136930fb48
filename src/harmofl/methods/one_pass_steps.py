"""Perturbed steps that cost one pass: the direction of the perturbation is known before the batch is seen.

The loss that such a step returns, and what batch norm layers learn, belong to the perturbed weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.optim import Optimizer

from harmofl.errors import STRICT
from harmofl.methods.perturbation import Direction, weights_of
from harmofl.methods.pieces import LocalRound
from harmofl.methods.radius import Radius
from harmofl.methods.steps import ComputeLoss, RoundStep, Step, descend_aside
from harmofl.states import plain_copy

MOMENTA = ("momentum_buffer", "exp_avg")
"""Where torch's optimizers keep their moving average of gradients: SGD, RMSprop; Adam and its relatives."""


@dataclass(frozen=True, config=STRICT)
class MomentumPerturbedDescent(Radius):
    """Descends with the gradient at θ − ρ·v/‖v‖: v is the optimizer's momentum (Momentum-SAM, Becker et al. 2024).

    The perturbation goes on in the direction of the last step. v is SGD's momentum or Adam's first moment, as it was
    after the last step; its norm is that over all weights. Without momentum, and in the first step of an optimizer
    without history, the step is plain gradient descent.

    Args:
        radius: The paper's ρ; 0.05 if neither length is given.
        radius_relative: The same as a part of the norm of the weights. Only one of the two may be given.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.constant_(model.weight, 1.0)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        >>> step = MomentumPerturbedDescent(radius=0.5)
        >>> for _ in range(2):  # w²: plain at w = 1, then with the gradient at 0.8 − 0.5
        ...     loss = step(model, optimizer, lambda: model(torch.ones(1, 1)).square().sum())
        >>> round(model.weight.item(), 4)  # 0.8 − 0.1 · (0.5 · 2 + 0.6)
        0.64
    """

    def __call__(self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
        """Make one step of an optimizer with momentum."""
        momenta = {weight: _momentum(optimizer.state.get(weight, {})) for weight in weights_of(optimizer)}
        known = {weight: momentum for weight, momentum in momenta.items() if momentum is not None}
        return descend_aside(optimizer, compute_loss, Direction(known, self, backwards=True))


@dataclass(frozen=True, config=STRICT)
class GlobalPerturbedDescent(Radius, RoundStep):
    """Descends with the gradient at θ + ρ·(θˢ − θᵗ)/‖θˢ − θᵗ‖ (FedLESAM, Fan et al., ICML 2024).

    θᵗ is the global model of this round and θˢ that of the last round in which the site took part, which it keeps.
    Their difference estimates the direction in which the loss of all sites rises, the same at every step of the round.
    In a site's first round the step is plain gradient descent. The norm is that over all weights; the released code
    divides by the sum of the layers' norms instead.

    Args:
        radius: The paper's ρ; 0.05 if neither length is given.
        radius_relative: The same as a part of the norm of the weights. Only one of the two may be given.
    """

    def start(self, local: LocalRound) -> Step:
        """Fix the direction of this round."""
        kept = local.memory.kept
        named = list(local.model.network.named_parameters())
        directions: dict[Tensor, Tensor] = {
            weight: kept[name].to(start.device) - start
            for (name, weight), start in zip(named, local.initial_weights, strict=True)
            if kept
        }
        direction = Direction(directions, self)
        return lambda model, optimizer, compute_loss: descend_aside(optimizer, compute_loss, direction)

    def finish(self, local: LocalRound) -> None:
        """Keep the global model of this round."""
        names = (name for name, _ in local.model.network.named_parameters())
        local.memory.kept = {name: plain_copy(start) for name, start in zip(names, local.initial_weights, strict=True)}


def _momentum(state: Mapping[str, object]) -> Tensor | None:
    found = (state.get(name) for name in MOMENTA)
    return next((momentum for momentum in found if isinstance(momentum, Tensor)), None)
