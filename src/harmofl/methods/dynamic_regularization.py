"""FedDyn (Acar et al., ICLR 2021): each site's loss is changed so that all sites agree where the sum is least."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from harmofl.errors import STRICT
from harmofl.methods.penalties import Batch, Penalty, Term, squared_distance
from harmofl.methods.pieces import LocalRound
from harmofl.methods.server_rules import ServerRule
from harmofl.states import State, plain_copy


@dataclass(frozen=True, config=STRICT)
class DynamicRegularizer(Penalty):
    """−⟨λᵢ, θ⟩ + α/2 · ‖θ − θᵗ‖², where the site keeps λᵢ ← λᵢ − α · (θᵢ − θᵗ), from zero."""

    alpha: Annotated[float, Field(gt=0)] = 0.01
    uses_representation = False

    def start(self, local: LocalRound) -> Term:
        """Fix λᵢ and the anchor θᵗ of this round."""
        kept = local.memory.kept
        names = [name for name, _ in local.model.network.named_parameters()]
        slopes = [kept[name].to(start.device) for name, start in zip(names, local.initial_weights, strict=True) if kept]

        def term(batch: Batch) -> Tensor:
            near = self.alpha / 2 * squared_distance(batch.weights, local.initial_weights)
            if not slopes:
                return near
            products = torch._foreach_mul(slopes, list(batch.weights))
            return near - torch.stack([product.sum() for product in products]).sum()

        return term

    def finish(self, local: LocalRound) -> None:
        """Keep the new λᵢ."""
        kept, weights = local.memory.kept, local.model.network.named_parameters()
        moves = {
            name: plain_copy(weight - start)
            for (name, weight), start in zip(weights, local.initial_weights, strict=True)
        }
        local.memory.kept = {name: kept.get(name, 0) - self.alpha * move for name, move in moves.items()}


@dataclass(frozen=True)
class DynamicAverage(ServerRule):
    """θ ← mean of the sites that answered − h/α, with h/α ← h/α − (sum of their moves)/(number of all sites).

    So the server remembers the mean over all sites of all that they have moved; a site that misses a round has not
    moved.
    """

    def move_for(self, update: State, memory: State, learning_rate: float, answered: float) -> tuple[State, State]:
        """Go to the mean, and as far again as the sites have moved in all rounds together."""
        total = {
            name: memory.get(name, torch.zeros_like(tensor)) + answered * tensor for name, tensor in update.items()
        }
        return {name: learning_rate * (tensor + total[name]) for name, tensor in update.items()}, total
