"""How one batch changes the weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from harmofl.errors import STRICT
from harmofl.methods.perturbation import Buffers, climb, take_perturbed_gradient, weights_of
from harmofl.methods.pieces import LocalRound, Piece
from harmofl.methods.radius import Radius

ComputeLoss = Callable[[], Tensor]


class Step(Protocol):
    """Makes one optimizer step."""

    def __call__(self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
        """Change the model's weights once.

        Args:
            model: The network, in train mode.
            optimizer: Of the model's weights.
            compute_loss: Runs the model on the batch; returns a scalar, and may be called several times.

        Returns:
            The loss before the step, detached.
        """


class RoundStep(Piece):
    """A step with state: it is started once per round and returns the step of that round.

    `control_variates.py` is a whole one.

    Example:
        >>> class Halving(RoundStep):
        ...     def start(self, local):
        ...         def step(model, optimizer, compute_loss):
        ...             loss = take_gradient(optimizer, compute_loss)
        ...             for weight in model.parameters():
        ...                 weight.grad /= 2**local.number  # smaller steps from round to round
        ...             optimizer.step()
        ...             return loss
        ...         return step
    """

    @abstractmethod
    def start(self, local: LocalRound) -> Step:
        """Return what makes the optimizer steps of this round."""


def descend(model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
    """Plain gradient descent: one pass, one optimizer step."""
    loss = take_gradient(optimizer, compute_loss)
    optimizer.step()
    return loss


@dataclass(frozen=True, config=STRICT)
class PerturbedDescent(Radius):
    """Descends with the gradient found at θ + δ, δ = α·∇ℓ/‖∇ℓ‖, so that sites reach flat optima (Eq. 6-7 of HarmoFL).

    The norm is that of the gradient over all weights. `compute_loss` is called twice and the first pass's loss
    returned. The second pass repeats the first, from the same buffers and random state, and leaves no trace but its
    gradient: weights are put back exactly, buffers stay as the first pass left them. This reaches the buffers of
    `model` only, so a layer that learns, such as AmplitudeNormalization, belongs inside it.

    Gradients that were there before are dropped: micro-batches belong inside `compute_loss`, which may call
    `backward()` for all but the last of them. Autocast may be on, but a loss must not be scaled (GradScaler), as the
    optimizer would step with the scaled gradient: bfloat16 needs no scaling. LBFGS and sparse gradients are refused.

    Args:
        radius: The paper's α, the length of δ; 0.05 if neither length is given. At 0 the step is plain descent.
        radius_relative: The length of δ as a part of ‖θ‖, the norm of the weights that move, at every step. It means
            the same for every network. Only one of the two may be given.

    Example:
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.constant_(model.weight, 1.0)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = PerturbedDescent(radius=0.5)
        >>> step(model, optimizer, lambda: model(torch.ones(1, 1)).square().sum())  # w², at w = 1
        tensor(1.)
        >>> model.weight.item()  # 1 − 0.1 · (gradient 3 at w = 1.5)
        0.699999988079071
    """

    def __call__(self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
        """Make one step of any torch optimizer whose `step()` needs no closure."""
        if isinstance(optimizer, LBFGS):
            raise TypeError("optimizer must not be LBFGS, as it computes gradients itself, by a closure")
        if self.is_zero:
            return descend(model, optimizer, compute_loss)
        loss = take_perturbed_gradient(
            weights_of(optimizer),
            lambda weights: climb(weights, self.length(weights)),
            lambda: take_gradient(optimizer, compute_loss),
            Buffers(model.modules()),
        )
        optimizer.step()
        return loss


def take_gradient(optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
    """Compute the loss and its gradient at the present weights; earlier gradients are dropped."""
    optimizer.zero_grad()
    loss = compute_loss()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.clear_autocast_cache()  # its copies are of weights that change now
    return loss.detach()
