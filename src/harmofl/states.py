"""Named tensors that leave or enter a model, and temporary changes that undo themselves exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def snapshot(module: nn.Module, names: Iterable[str] | None = None) -> State:
    """Copy a module's state to the CPU: the only way state leaves a model.

    `state_dict()` aliases the live weights, which go on changing while others still read them.
    """
    live = module.state_dict()
    chosen = live if names is None else {name: live[name] for name in names}
    return {name: plain_copy(tensor) for name, tensor in chosen.items()}


def plain_copy(tensor: Tensor) -> Tensor:
    """A copy on the CPU in the plain layout: weights may be stored channels-last, but never travel or rest so."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def load(module: nn.Module, *states: Mapping[str, Tensor]) -> None:
    """Copy states into a module; together they must name every entry exactly once."""
    merged = {name: tensor for state in states for name, tensor in state.items()}
    if len(merged) != sum(len(state) for state in states):
        raise ValueError("two states name the same entry")
    module.load_state_dict(merged)


def add_prefix(prefix: str, state: Mapping[str, Tensor]) -> State:
    """The same tensors under `prefix.name`."""
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def select_prefix(prefix: str, state: Mapping[str, Tensor]) -> State:
    """The tensors that stand under `prefix.`, without it."""
    return {name[len(prefix) + 1 :]: state[name] for name in state if name.startswith(f"{prefix}.")}


def num_bytes(*states: Mapping[str, Tensor]) -> int:
    """Bytes that the tensors take when they travel."""
    return sum(tensor.nbytes for state in states for tensor in state.values())


@contextmanager
def restoring(tensors: list[Tensor]) -> Iterator[None]:
    """Put tensors back, bit for bit, at the end of the block."""
    with torch.no_grad():
        saved = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(tensors, saved)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run a block with the module in eval mode and without gradients."""
    modes = [(part, part.training) for part in module.modules()]  # parts may differ: a layer kept in eval mode
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, was_training in modes:
            part.training = was_training
