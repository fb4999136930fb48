"""Terms added to the task's loss.

A penalty is started once per round and returns the term for each batch.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from harmofl.errors import STRICT
from harmofl.methods.pieces import LocalRound, Piece
from harmofl.models.network import Network
from harmofl.states import load, snapshot


@plain_dataclass(frozen=True)
class Batch:
    """One pass of the local model over a batch."""

    weights: Sequence[Tensor]
    """The network's trainable weights, live: gradients flow."""
    inputs: Tensor
    """Harmonized images (N, C, H, W)."""
    representation: Tensor
    """(N, features): the network's last features before its classifier, averaged over the image.

    Empty if no penalty of the method uses it.
    """


Term = Callable[[Batch], Tensor]
"""From a batch to a scalar that is added to the loss."""


class Penalty(Piece):
    """A term of the local loss.

    Example:
        >>> class Sparsity(Penalty):
        ...     def start(self, local):
        ...         return lambda batch: 1e-4 * sum(weight.abs().sum() for weight in batch.weights)
        >>> term = Sparsity().start(local=None)
        >>> term(Batch([torch.tensor([2.0, -3.0])], torch.zeros(1), torch.zeros(1)))
        tensor(0.0005)
    """

    uses_representation: ClassVar[bool] = True
    """Whether the term looks at the batch's representation, which takes a pass that cannot be compiled."""

    @abstractmethod
    def start(self, local: LocalRound) -> Term | None:
        """Return this round's term, a function of every batch, or None if it is zero."""


@dataclass(frozen=True, config=STRICT)
class Proximity(Penalty):
    """μ/2 · ‖θ − θᵗ‖²: keeps the local model near the global one."""

    mu: Annotated[float, Field(ge=0)] = 0.01
    uses_representation = False

    def start(self, local: LocalRound) -> Term | None:
        """Anchor the term at the global model's weights."""
        if self.mu == 0:
            return None
        return lambda batch: self.mu / 2 * squared_distance(batch.weights, local.initial_weights)


@dataclass(frozen=True, config=STRICT)
class ModelContrast(Penalty):
    """μ · −log softmax: representations nearer to the global model's than to the site's own previous model's.

    The site keeps its model of every round for the next one; without one, the global model stands for it.
    """

    mu: Annotated[float, Field(ge=0)] = 1.0
    temperature: Annotated[float, Field(gt=0)] = 0.5

    def start(self, local: LocalRound) -> Term | None:
        """Fix the two models that representations are compared with."""
        if self.mu == 0:
            return None
        network = local.model.network
        global_model = freeze_representation(network)
        previous_model = freeze_representation(network, local.memory.kept)

        def term(batch: Batch) -> Tensor:
            positive = global_model(batch.inputs)
            negative = previous_model(batch.inputs)
            return self.mu * contrast(batch.representation, positive, negative, self.temperature)

        return term

    def finish(self, local: LocalRound) -> None:
        """Keep the trained model as the next round's previous one."""
        local.memory.kept = snapshot(local.model.network)


def freeze_representation(network: Network, state: Mapping[str, Tensor] | None = None) -> Callable[[Tensor], Tensor]:
    """Return the representation that a copy of the network gives, in eval mode without gradients.

    `state`: other weights for the copy, if there are any.
    """
    twin = copy.deepcopy(network).eval()
    if state:
        load(twin, state)
    return torch.no_grad()(twin.representation)


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
