"""What a site lowers with every batch: the task's loss of the network's output, and the terms of the method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harmofl.federation.numerics import Numerics
from harmofl.methods.penalties import Batch, Penalty, Term
from harmofl.methods.pieces import Piece
from harmofl.models.network import Network

FEWEST = 2
"""Images of a part of a batch: batch norm needs two."""


@dataclass(frozen=True)
class LocalLoss:
    """The loss of one round at a site."""

    network: Network
    numerics: Numerics
    task_loss: Callable[[Tensor, Tensor], Tensor]
    """From logits and targets."""
    terms: Sequence[Term] = ()
    represents: bool = False
    """Whether a term looks at the representation."""

    @classmethod
    def started(
        cls,
        network: Network,
        numerics: Numerics,
        task_loss: Callable[[Tensor, Tensor], Tensor],
        pieces: Iterable[tuple[Piece, Any]],
    ) -> LocalLoss:
        """The loss with the terms of penalties among pieces, each given with what its `start` returned."""
        terms = [(piece, term) for piece, term in pieces if isinstance(piece, Penalty) and term is not None]
        represents = any(piece.uses_representation for piece, _ in terms)
        return cls(network, numerics, task_loss, [term for _, term in terms], represents)

    def of(self, inputs: Tensor, targets: Tensor) -> BatchLoss:
        """The loss of a batch."""
        return BatchLoss(self, inputs, targets)

    def compute(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Run the network on a batch; return a scalar with a gradient."""
        if not len(inputs):  # a private batch is drawn image by image
            return torch.zeros((), device=inputs.device, requires_grad=True)
        with self.numerics.autocast():
            logits, representation = self._run(inputs)
            terms = self._compute_terms(inputs, representation)
        loss = self.task_loss(self.numerics.widen(logits), targets)
        return torch.stack([loss, *terms]).sum() if terms else loss

    def _compute_terms(self, inputs: Tensor, representation: Tensor) -> list[Tensor]:
        if not self.terms:  # without them nobody looks for all weights in every pass
            return []
        batch = Batch(list(self.network.parameters()), inputs, representation)
        return [term(batch) for term in self.terms]

    def _run(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the representation if a term wants it; its pass is never compiled."""
        if self.represents:
            return self.network.represent(inputs)
        return self.numerics.forward(inputs), inputs.new_empty(0)


@dataclass(frozen=True)
class BatchLoss:
    """The loss of one batch, which a step may compute several times, also on a part of the batch."""

    local: LocalLoss
    inputs: Tensor
    targets: Tensor

    def __call__(self) -> Tensor:
        """The loss of the whole batch."""
        return self.local.compute(self.inputs, self.targets)

    def on_part(self, fraction: float) -> BatchLoss:
        """The loss of the first images of the batch, which are in random order."""
        count = max(FEWEST, math.ceil(fraction * len(self.inputs)))
        return replace(self, inputs=self.inputs[:count], targets=self.targets[:count])
