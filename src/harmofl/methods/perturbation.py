"""The gradient at perturbed weights, which perturbed steps and PerturbedOptimizer descend with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from harmofl.methods.radius import Radius
from harmofl.states import restoring

Result = TypeVar("Result")


def weights_of(optimizer: Optimizer) -> list[Tensor]:
    """All weights of an optimizer, group by group."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def take_perturbed_gradient(
    weights: Sequence[Tensor], ascend: Callable[[list[Tensor]], None], run_pass: Callable[[], Result], buffers: Buffers
) -> Result:
    """Run a pass, climb along its gradient, and run it again there: only the second pass's gradient is left.

    Args:
        weights: Those that climb: all that get a gradient.
        ascend: Moves them, given those that have a gradient; they are put back afterwards.
        run_pass: Replaces the weights' gradients by those of a loss.
        buffers: Of the modules that the pass uses, as they are now; modules may be added while the first pass runs.

    Returns:
        What the first pass returned.
    """
    device = weights[0].device
    random_state = _random_state(device)
    result = run_pass()
    moved = [weight for weight in weights if weight.grad is not None]
    if not moved:
        raise RuntimeError(
            "the loss gave none of the optimizer's weights a gradient: is it the optimizer of this model?"
        )
    with restoring(moved), buffers.as_they_were():
        ascend(moved)
        _set_random_state(device, random_state)
        run_pass()
    return result


@contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Run a pass of which nothing remains but gradients: buffers and random state are put back at the end."""
    device = next(model.parameters()).device
    random_state, buffers = _random_state(device), Buffers(model.modules())
    try:
        yield
    finally:
        buffers.put_back()
        _set_random_state(device, random_state)


class Buffers:
    """Modules' buffers at one moment: which tensors they were, as modules may assign others, and their values."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._modules: dict[nn.Module, None] = {}
        self._places: list[tuple[dict[str, Tensor | None], str, Tensor | None]] = []
        self._values: list[Tensor] = []
        for module in modules:
            self.add(module)

    def add(self, module: nn.Module) -> None:
        """Note the present buffers of a module; those of a module that is already noted are left alone."""
        if module not in self._modules:
            self._modules[module] = None
            places = [(module._buffers, *item) for item in module._buffers.items()]
            self._places += places
            self._values += [tensor.detach().clone() for _, _, tensor in places if tensor is not None]

    @contextmanager
    def of_called_modules(self) -> Iterator[None]:
        """Add every module that is called in the block, with its parts, just before it runs."""

        def note(module: nn.Module, inputs: object) -> None:
            # A compiled module's parts are noted with it, before its code runs, which cannot do this itself.
            if not torch.compiler.is_compiling() and module not in self._modules:
                for part in module.modules():
                    self.add(part)

        handle = register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def as_they_were(self) -> Iterator[None]:
        """Go back to this moment for a block."""
        now = Buffers(self._modules)
        self.put_back()
        try:
            yield
        finally:
            now.put_back()

    @torch.no_grad()
    def put_back(self) -> None:
        """Go back to this moment for good."""
        for buffers, name, tensor in self._places:
            buffers[name] = tensor
        tensors = [tensor for _, _, tensor in self._places if tensor is not None]
        if tensors:
            torch._foreach_copy_(tensors, self._values)


class Direction:
    """A direction of length 1 over all weights; it is divided by its norm once, for all the steps that it serves."""

    @torch.no_grad()
    def __init__(self, directions: Mapping[Tensor, Tensor], radius: Radius, backwards: bool = False) -> None:
        """`directions`: for each weight that moves, where to; of any length. `radius`: how far.

        `backwards`: move against them.
        """
        self.weights: list[Tensor] = [] if radius.is_zero else list(directions)
        """Those that move."""
        self._radius = radius
        self._moves = _divide_by_norm(list(directions.values()), backwards) if self.weights else []
        if self._moves and radius.radius is not None:
            _multiply(self._moves, radius.radius)  # a length that stays the same

    @torch.no_grad()
    def move(self) -> None:
        """Move the weights along it."""
        if self.weights:
            is_fixed = self._radius.radius is not None
            moves = self._moves if is_fixed else torch._foreach_mul(self._moves, self._radius.length(self.weights))
            torch._foreach_add_(self.weights, moves)


def climb(weights: list[Tensor], radius: Radius) -> None:
    """Move weights a distance along their gradient, whose norm is that over all weights."""
    Direction({weight: weight.grad for weight in weights if weight.grad is not None}, radius).move()


@torch.no_grad()
def move_along(
    weights: Sequence[Tensor], directions: Sequence[Tensor], length: float, scales: Sequence[Tensor]
) -> None:
    """Move weights a distance along directions, which are divided by their norm over all weights.

    `scales`: numbers by which each weight's own move is multiplied afterwards.
    """
    moves = _divide_by_norm(directions)
    _multiply(moves, length)
    torch._foreach_mul_(moves, list(scales))
    torch._foreach_add_(list(weights), moves)


def _divide_by_norm(directions: Sequence[Tensor], backwards: bool = False) -> list[Tensor]:
    """Directions of length 1 over all weights, or their opposites."""
    if any(direction.layout != torch.strided for direction in directions):
        raise TypeError("gradients must be dense: a perturbed step cannot climb along sparse ones (sparse=True)")
    # Squares of numbers below 1e-19 underflow, so smaller norms cannot be trusted: such directions move next to
    # nothing, and a zero one moves nothing.
    norm = get_total_norm(directions).clamp_min(max(1e-19, torch.finfo(directions[0].dtype).tiny))
    return list(torch._foreach_div(list(directions), -norm if backwards else norm))


def _multiply(tensors: list[Tensor], number: float) -> None:
    """Multiply tensors in place: on a CPU by a tensor, as torch would make one of the number for each of them."""
    kind = tensors[0].dtype
    if kind in (torch.float32, torch.float64) and all(tensor.dtype == kind for tensor in tensors):
        torch._foreach_mul_(tensors, torch.full((), number, dtype=kind, device=tensors[0].device))
    else:
        torch._foreach_mul_(tensors, number)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
