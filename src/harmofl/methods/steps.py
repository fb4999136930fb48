"""How one batch changes the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from harmofl.errors import STRICT
from harmofl.states import restored

ComputeLoss = Callable[[], Tensor]


class Step(Protocol):
    """Makes one optimizer step and returns the loss before it."""

    def __call__(self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
        """Change the model's weights once."""


def descend(model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
    """Plain gradient descent: one pass, one optimizer step."""
    loss = _take_gradient(optimizer, compute_loss)
    optimizer.step()
    return loss


@dataclass(frozen=True, config=STRICT)
class PerturbedDescent:
    """Descends with the gradient found at θ + δ, δ = α·∇ℓ/‖∇ℓ‖, so that sites reach flat optima (Eq. 6-7 of HarmoFL).

    `radius` is the paper's α; the norm is that of the gradient over all weights. `compute_loss` is called twice and
    the first pass's loss returned. The second pass leaves no trace but its gradient: weights are put back exactly,
    buffers stay as the first pass left them, and it repeats the first pass's random state.
    """

    radius: Annotated[float, Field(ge=0)] = 0.05

    def __call__(self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
        """Make one step of any torch optimizer."""
        if self.radius == 0:
            return descend(model, optimizer, compute_loss)
        device = next(model.parameters()).device
        random_state = _random_state(device)
        loss = _take_gradient(optimizer, compute_loss)
        weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        with restored(weights), restored(list(model.buffers())):
            _climb(weights, self.radius)
            _set_random_state(device, random_state)
            _take_gradient(optimizer, compute_loss)
        optimizer.step()
        return loss


def _take_gradient(optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
    optimizer.zero_grad()
    loss = compute_loss()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


@torch.no_grad()
def _climb(weights: list[Tensor], radius: float) -> None:
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if gradients:
        # Squares of numbers below 1e-19 underflow, so smaller norms cannot be trusted: such gradients move next to
        # nothing, and a zero gradient moves nothing.
        norm = get_total_norm(gradients).clamp_min(max(1e-19, torch.finfo(gradients[0].dtype).tiny))
        torch._foreach_add_(weights, torch._foreach_mul(torch._foreach_div(gradients, norm), radius))


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
