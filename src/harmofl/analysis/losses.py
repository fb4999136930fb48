"""The loss of a network on a site's images, at its weights and around them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harmofl.analysis.directions import Weights
from harmofl.devices import num_cores
from harmofl.states import evaluating, restoring
from harmofl.tasks.losses import Loss

Batch = tuple[Tensor, Tensor]
"""Harmonized images and targets on the network's device: only the network is left to compute."""

Batches = Sequence[Batch]

Array = NDArray[np.float64]

Mode = Callable[[nn.Module], AbstractContextManager[None]]
"""Which loss: of the model as it is used (`evaluating`), or as training sees it (`as_in_training`)."""


def mean_loss(network: nn.Module, batches: Batches, loss: Loss) -> float:
    """The mean over images of the batches' losses, as in training and in the records."""
    total = sum(loss(network(inputs), targets).detach() * len(inputs) for inputs, targets in batches)
    return float(total) / sum(len(inputs) for inputs, _ in batches)


@contextmanager
def as_in_training(network: nn.Module) -> Iterator[None]:
    """Run a block with batch norm on each batch's own statistics, as the sites' steps see it; leave no trace."""
    modes = [(part, part.training) for part in network.modules()]
    network.train()
    try:
        with restoring(list(network.buffers())):
            yield
    finally:
        for part, was_training in modes:
            part.training = was_training


def losses_at(
    network: nn.Module, plane: Sequence[Weights], points: Array, batches: Batches, loss: Loss, mode: Mode = evaluating
) -> Iterator[float]:
    """Yield the loss at θ + Σ point_k · direction_k for each point; the weights are put back exactly."""
    weights: Weights = list(network.parameters())
    start = [weight.detach().clone() for weight in weights]
    with torch.no_grad(), mode(network), restoring(weights):
        for point in points:
            torch._foreach_copy_(weights, start)  # from the start each time: no rounding adds up
            for amount, direction in zip(point, plane, strict=True):
                torch._foreach_add_(weights, direction, alpha=float(amount))
            yield mean_loss(network, batches, loss)


def surface(
    network: nn.Module,
    plane: Sequence[Weights],
    axis: Array,
    batches: Batches,
    loss: Loss,
    mode: Mode = evaluating,
    known: Array | None = None,
) -> Iterator[list[float]]:
    """Yield the rows of the losses on a grid: row by row along the second direction, within a row along the first.

    `known` are the losses in the grid's middle (Q, Q), which are not computed again. Rows are computed side by side,
    each on a copy of the network and on one thread: numbers do not depend on cores.
    """
    num_copies = min(side_by_side(network), len(axis))
    copies: SimpleQueue[nn.Module] = SimpleQueue()
    for _ in range(num_copies):
        copies.put(copy.deepcopy(network))
    margin = 0 if known is None else (len(axis) - len(known)) // 2

    def row(index: int) -> list[float]:
        inner = [] if known is None or not 0 <= index - margin < len(known) else known[index - margin].tolist()
        firsts = np.delete(axis, slice(margin, margin + len(inner)))
        own = copies.get()
        try:
            points = np.stack([firsts, np.full_like(firsts, axis[index])], axis=1)
            computed = list(losses_at(own, plane, points, batches, loss, mode))
        finally:
            copies.put(own)
        return computed[:margin] + inner + computed[margin:]

    with ThreadPoolExecutor(num_copies) as pool:
        yield from pool.map(row, range(len(axis)))


def side_by_side(network: nn.Module) -> int:
    """How many copies of a network are worth computing at a time."""
    return num_cores() if next(network.parameters()).device.type == "cpu" else 1
