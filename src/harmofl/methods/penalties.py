"""Terms added to the task's loss.

A penalty is told once per round what it may compare with (`Reference`) and returns the term for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Protocol

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from harmofl.errors import STRICT

Represent = Callable[[Tensor], Tensor]


@plain_dataclass(frozen=True)
class Batch:
    """One pass of the local model over a batch."""

    weights: Sequence[Tensor]
    inputs: Tensor
    representation: Tensor


@plain_dataclass(frozen=True)
class Reference:
    """What is fixed during a round: where the local model started, and two older models' representations.

    Both models run in eval mode without gradients and are made only when asked for; a site without a previous
    model gets the global one.
    """

    weights: Sequence[Tensor]
    global_model: Callable[[], Represent]
    previous_model: Callable[[], Represent]


Term = Callable[[Batch], Tensor]


class Penalty(Protocol):
    """A term of the local loss."""

    @property
    def needs_previous_model(self) -> bool:
        """Whether sites must keep their model of the round before."""

    def start(self, reference: Reference) -> Term | None:
        """Return this round's term, or None if it is zero."""


@dataclass(frozen=True, config=STRICT)
class Proximity:
    """μ/2 · ‖θ − θᵗ‖²: keeps the local model near the global one."""

    mu: Annotated[float, Field(ge=0)] = 0.01
    needs_previous_model = False

    def start(self, reference: Reference) -> Term | None:
        """Anchor the term at the global model's weights."""
        if self.mu == 0:
            return None
        return lambda batch: self.mu / 2 * squared_distance(batch.weights, reference.weights)


@dataclass(frozen=True, config=STRICT)
class ModelContrast:
    """μ · −log softmax: representations nearer to the global model's than to the site's own previous model's."""

    mu: Annotated[float, Field(ge=0)] = 1.0
    temperature: Annotated[float, Field(gt=0)] = 0.5
    needs_previous_model = True

    def start(self, reference: Reference) -> Term | None:
        """Fix the two models that representations are compared with."""
        if self.mu == 0:
            return None
        global_model, previous_model = reference.global_model(), reference.previous_model()

        def term(batch: Batch) -> Tensor:
            positive = global_model(batch.inputs)
            negative = previous_model(batch.inputs)
            return self.mu * contrast(batch.representation, positive, negative, self.temperature)

        return term


def squared_distance(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """‖first − second‖² over lists of tensors, differentiable."""
    norms = torch._foreach_norm(torch._foreach_sub(list(first), list(second)))
    return torch.stack(norms).square().sum()


def contrast(representation: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """−log [exp(s₊/T) / (exp(s₊/T) + exp(s₋/T))] with cosine similarities s, averaged over the batch."""
    similarities = torch.stack(
        [
            F.cosine_similarity(representation, positive, dim=-1),
            F.cosine_similarity(representation, negative, dim=-1),
        ],
        dim=-1,
    )
    return -F.log_softmax(similarities / temperature, dim=-1)[..., 0].mean()
