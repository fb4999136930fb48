"""How one batch changes the weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from harmofl.displays.profiling import part
from harmofl.errors import STRICT
from harmofl.methods.perturbation import Buffers, Direction, take_perturbed_gradient, weights_of, without_trace
from harmofl.methods.pieces import LocalRound, Piece
from harmofl.methods.radius import Radius
from harmofl.states import restoring

ComputeLoss = Callable[[], Tensor]


@runtime_checkable
class DivisibleLoss(Protocol):
    """A loss that can also be computed on a part of the batch only."""

    def __call__(self) -> Tensor:
        """The loss of the whole batch."""

    def on_part(self, fraction: float) -> ComputeLoss:
        """The loss of this fraction of the batch."""


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
class PerturbedDescent(Radius, RoundStep):
    """Descends with the gradient found at θ + δ, δ = α·∇ℓ/‖∇ℓ‖, so that sites reach flat optima (Eq. 6-7 of HarmoFL).

    The norm is that of the gradient over all weights. `compute_loss` is called twice and the first pass's loss
    returned. The second pass repeats the first, from the same buffers and random state, and leaves no trace but its
    gradient: weights are put back exactly, buffers stay as the first pass left them. This reaches the buffers of
    `model` only, so a layer that learns, such as AmplitudeNormalization, belongs inside it.

    Two settings make it cheaper, and inexact: the direction of δ may be reused for several steps, and found on a part
    of the batch. Where only one pass over the whole batch is made, its loss, at θ + δ, is returned, and buffers learn
    from it.

    Gradients that were there before are dropped: micro-batches belong inside `compute_loss`, which may call
    `backward()` for all but the last of them. Autocast may be on, but a loss must not be scaled (GradScaler), as the
    optimizer would step with the scaled gradient: bfloat16 needs no scaling. LBFGS and sparse gradients are refused.

    Args:
        radius: The paper's α, the length of δ; 0.05 if neither length is given. At 0 the step is plain descent.
        radius_relative: The length of δ as a part of ‖θ‖, the norm of the weights that move, at every step. It means
            the same for every network. Only one of the two may be given.
        reuse: Steps for which a direction of δ is used; at 1 each step finds its own. In a training loop of your own,
            call what `start()` returns: it remembers the direction.
        ascent_fraction: The part of the batch on which a direction is found: its first images, two at least. Below 1,
            `compute_loss` needs a method `on_part(fraction)`, which returns a function for that part.

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

    reuse: Annotated[int, Field(ge=1)] = 1
    ascent_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0

    def start(self, local: LocalRound | None = None) -> Step:
        """Return the step of a round, whose first one finds a direction."""
        return self if self.reuse == 1 or self.is_zero else _ReusedDirection(self)

    def __call__(self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
        """Make one step of any torch optimizer whose `step()` needs no closure."""
        if self.is_zero:
            return descend(model, optimizer, compute_loss)
        if self.reuse > 1:
            raise TypeError(f"reuse = {self.reuse}: call start() once, and then what it returns at every step")
        return self.find_and_descend(model, optimizer, compute_loss)[0]

    def find_and_descend(
        self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss
    ) -> tuple[Tensor, Direction]:
        """Make a step in a new direction; return the loss and the direction."""
        if not hasattr(optimizer, "param_groups"):
            raise TypeError(
                f"optimizer must be a torch optimizer, not {type(optimizer).__name__}: the order is model, optimizer, "
                "compute_loss"
            )
        if isinstance(optimizer, LBFGS):
            raise TypeError("optimizer must not be LBFGS, as it computes gradients itself, by a closure")
        if self.ascent_fraction < 1:
            with without_trace(model):
                take_gradient(optimizer, on_part(compute_loss, self.ascent_fraction))
            found = Direction(_gradients(weights_of(optimizer)), self)
            return descend_aside(optimizer, compute_loss, found), found
        directions: list[Direction] = []

        def ascend(weights: list[Tensor]) -> None:
            directions.append(Direction(_gradients(weights), self))
            directions[0].move()

        loss = take_perturbed_gradient(
            weights_of(optimizer),
            ascend,
            lambda: take_gradient(optimizer, compute_loss),
            Buffers(model.modules()),
        )
        optimizer.step()
        return loss, directions[0]


class _ReusedDirection:
    """The perturbed steps of one round, of which only every k-th finds a direction."""

    def __init__(self, settings: PerturbedDescent) -> None:
        self._settings = settings
        self._direction = Direction({}, settings)
        self._num_steps = 0

    def __call__(self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
        """Make one step."""
        is_due = self._num_steps % self._settings.reuse == 0
        self._num_steps += 1
        if not is_due:
            return descend_aside(optimizer, compute_loss, self._direction)
        loss, self._direction = self._settings.find_and_descend(model, optimizer, compute_loss)
        return loss


def descend_aside(optimizer: Optimizer, compute_loss: ComputeLoss, direction: Direction) -> Tensor:
    """Make a step with the gradient found after the weights have moved along a direction; one pass.

    Args:
        optimizer: Makes the step.
        compute_loss: As every step gets it.
        direction: Which weights move, where to, and how far.

    Returns:
        The loss there, detached.
    """
    with restoring(direction.weights):
        direction.move()
        loss = take_gradient(optimizer, compute_loss)
    optimizer.step()
    return loss


def on_part(compute_loss: ComputeLoss, fraction: float) -> ComputeLoss:
    """The loss of a part of the batch, or an error if it cannot be divided."""
    if not isinstance(compute_loss, DivisibleLoss):
        raise TypeError(f"ascent_fraction = {fraction}: compute_loss needs a method on_part(fraction)")
    return compute_loss.on_part(fraction)


def _gradients(weights: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """The gradients, which `zero_grad` lets go and does not overwrite."""
    return {weight: weight.grad for weight in weights if weight.grad is not None}


def check_loss(loss: Tensor) -> Tensor:
    """Return a loss that a step can take the gradient of, or say what is wrong with it."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"compute_loss must return the loss, a tensor of one number, not {type(loss).__name__}")
    if loss.numel() != 1:
        raise ValueError(f"compute_loss must return a tensor of one number, not of shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise ValueError(
            "compute_loss returned a loss without a gradient: return the loss itself, not detached, and computed with "
            "gradients enabled; the step calls backward()"
        )
    return loss


def take_gradient(optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
    """Compute the loss and its gradient at the present weights; earlier gradients are dropped."""
    if not callable(compute_loss):
        raise TypeError(
            f"compute_loss must be a function that computes the loss, not {type(compute_loss).__name__}: a step may "
            "call it again at other weights"
        )
    optimizer.zero_grad()
    with part("forward"):
        loss = check_loss(compute_loss())
    with part("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    torch.clear_autocast_cache()  # its copies are of weights that change now
    return loss.detach()
