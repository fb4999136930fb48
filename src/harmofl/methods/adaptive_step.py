"""FedASAM (Caldarola, Caputo and Ciccone, ECCV 2022): perturbations that follow the scale of each weight."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.optim import Optimizer

from harmofl.errors import STRICT
from harmofl.methods.perturbation import Buffers, move_along, take_perturbed_gradient, weights_of
from harmofl.methods.steps import ComputeLoss, descend, take_gradient


@dataclass(frozen=True, config=STRICT)
class AdaptivePerturbedDescent:
    """Descends with the gradient found at θ + δ, δ = ρ·T²∇ℓ/‖T∇ℓ‖ with T = |θ| + η, weight by weight (ASAM).

    Large weights move further than small ones, so that the perturbation means the same however layers are scaled. For
    biases T = 1, as in the released code. Two passes, as `PerturbedDescent` makes them.

    Args:
        adaptive_radius: The paper's ρ, in units of the weights; at 0 the step is plain gradient descent.
        offset: The paper's η, what a weight of zero is scaled by.

    Example:
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.constant_(model.weight, 1.0)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = AdaptivePerturbedDescent(adaptive_radius=0.25, offset=1.0)
        >>> loss = step(model, optimizer, lambda: model(torch.ones(1, 1)).square().sum())  # w², at w = 1: T = 2
        >>> round(model.weight.item(), 4)  # 1 − 0.1 · (gradient 3 at w = 1 + 0.25 · 2)
        0.7
    """

    adaptive_radius: Annotated[float, Field(ge=0)] = 0.5
    offset: Annotated[float, Field(ge=0)] = 0.01

    def __call__(self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
        """Make one step of any torch optimizer whose `step()` needs no closure."""
        if self.adaptive_radius == 0:
            return descend(model, optimizer, compute_loss)
        biases = {weight for name, weight in model.named_parameters() if name.rpartition(".")[2] == "bias"}
        loss = take_perturbed_gradient(
            weights_of(optimizer),
            lambda weights: self._climb(weights, biases),
            lambda: take_gradient(optimizer, compute_loss),
            Buffers(model.modules()),
        )
        optimizer.step()
        return loss

    @torch.no_grad()
    def _climb(self, weights: list[Tensor], biases: set[nn.Parameter]) -> None:
        """Move each weight by ρ·T²·gradient over the norm of all T·gradient."""
        scales = [torch.ones_like(weight) if weight in biases else weight.abs() + self.offset for weight in weights]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        move_along(weights, torch._foreach_mul(gradients, scales), self.adaptive_radius, scales)
