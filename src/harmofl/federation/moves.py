"""How far a global model moves between requests, and how far a hospital lets it, unless it says otherwise."""

from __future__ import annotations

import math

from torch import Tensor

from harmofl.states import State

LARGEST_MOVE = 0.3
"""Of all weights together, as a part of their length."""
LARGEST_TENSOR_MOVE = 0.8
"""Of each tensor alone."""
SMALL_VALUE = 0.1
"""What a value of a bias, or of a tensor that starts at zero, counts at least: such a tensor has hardly any length."""


def distance(before: State, after: State) -> float:
    """How far weights are from others, as a part of their length; of entries that both have."""
    names = before.keys() & after.keys()
    length = math.sqrt(sum(float(before[name].double().square().sum()) for name in names))
    moved = math.sqrt(sum(float((after[name].double() - before[name].double()).square().sum()) for name in names))
    return moved / length if length else (math.inf if moved else 0.0)


def tensor_distance(before: Tensor, after: Tensor, initial: Tensor) -> float:
    """How far one tensor is from the one before, as a part of its length there or at the start, the longer of both.

    >>> import torch
    >>> weights = torch.tensor([[3.0, 4.0]])
    >>> tensor_distance(weights, torch.zeros(1, 2), weights)  # a layer that is emptied
    1.0
    >>> tensor_distance(torch.zeros(4), torch.full((4,), 0.0625), torch.zeros(4))  # a bias
    0.625
    """
    length = tensor_length(before, initial)
    return float((after.double() - before.double()).norm()) / length if length else 0.0


def tensor_length(before: Tensor, initial: Tensor) -> float:
    """The length that a tensor's move is compared with."""
    length = max(float(tensor.double().norm()) for tensor in (before, initial))
    if initial.ndim <= 1 or length == 0:
        length = max(length, SMALL_VALUE * math.sqrt(initial.numel()))
    return length


def move_towards(before: State, wanted: State, initial: State) -> State:
    """Weights as near to others as a hospital's default policy lets a server come in one request."""
    moved = {}
    for name, tensor in before.items():
        far = tensor_distance(tensor, wanted[name], initial[name])
        moved[name] = tensor + (wanted[name] - tensor) * min(1.0, LARGEST_TENSOR_MOVE / far if far else 1.0)
    part = min(1.0, LARGEST_MOVE / max(distance(before, moved), 1e-12))
    return {name: tensor + (moved[name] - tensor) * part for name, tensor in before.items()}
