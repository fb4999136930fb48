"""SCAFFOLD (Karimireddy et al., ICML 2020): a correction of the sites' drift."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harmofl.methods.combinations import Accumulated
from harmofl.methods.model import Model
from harmofl.methods.pieces import LocalRound
from harmofl.methods.steps import ComputeLoss, RoundStep, Step, take_gradient
from harmofl.states import State


@dataclass(frozen=True)
class ControlVariates(RoundStep):
    """Descends with g − cᵢ + c: cᵢ is the site's mean gradient of its last round, c the mean of all sites' cᵢ.

    The paper's second option, cᵢ⁺ = cᵢ − c + (θᵗ − θᵢ)/(Kη), is the mean of the K gradients g if the optimizer is plain
    gradient descent; we take that mean whatever the optimizer. Both variates start at zero.
    """

    combine = Accumulated

    def sends(self, model: Model) -> State:
        """Announce the change of cᵢ, one tensor per weight."""
        return {name: torch.zeros_like(weight, device="cpu") for name, weight in model.network.named_parameters()}

    def start(self, local: LocalRound) -> Step:
        """Fix the correction c − cᵢ of this round, and begin the sum of its gradients."""
        weights, memory = dict(local.model.network.named_parameters()), local.memory
        memory.scratch = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        sums = list(memory.scratch.values())
        corrections = [
            torch.zeros_like(weight).copy_(memory.received[name] - memory.kept.get(name, 0))
            for name, weight in weights.items()
            if memory.received
        ]

        def step(model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
            loss = take_gradient(optimizer, compute_loss)
            used = [place for place, weight in enumerate(weights.values()) if weight.grad is not None]
            gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
            torch._foreach_add_([sums[place] for place in used], gradients)
            if corrections:  # none in the first round
                torch._foreach_add_(gradients, [corrections[place] for place in used])
            optimizer.step()
            return loss

        return step

    def finish(self, local: LocalRound) -> None:
        """Keep the new cᵢ and send its change."""
        memory = local.memory
        variates = {name: (total / local.num_steps).cpu() for name, total in memory.scratch.items()}
        memory.sent = {name: variate - memory.kept.get(name, 0) for name, variate in variates.items()}
        memory.kept = variates
