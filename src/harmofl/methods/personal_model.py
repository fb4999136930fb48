"""Ditto (Li et al., ICML 2021): every site trains a model of its own beside the global one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.optim import Optimizer

from harmofl.errors import STRICT
from harmofl.methods.model import Model
from harmofl.methods.pieces import LocalRound, Memory
from harmofl.methods.steps import ComputeLoss, RoundStep, Step, descend, take_gradient
from harmofl.states import State, load, plain_copy, restoring


@dataclass(frozen=True, config=STRICT)
class PersonalModel(RoundStep):
    """Each batch first moves the personal model v, by ∇ℓ(v) + λ·(v − θᵗ), then the site's copy of the global one.

    θᵗ is the global model of the round, from which v starts in the site's first round. The personal step is made by an
    optimizer of the same class and settings as the site's, new in every round. What is sent is the global model,
    trained to the bit as without v; what is scored, written and used at the site is v, with its own buffers.

    Args:
        pull: The paper's λ, how strongly v is held to θᵗ. At 0 each site trains for itself.
    """

    pull: Annotated[float, Field(ge=0)] = 1.0
    personal = True

    def use(self, model: Model, memory: Memory) -> None:
        """Put the personal model in the place of the global one, once there is one."""
        if memory.kept:
            load(model.network, memory.kept)

    def start(self, local: LocalRound) -> Step:
        """Go on with the personal model; hold it to the global one of this round."""
        network = local.model.network
        personal = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        for name, tensor in local.memory.kept.items():
            personal[name].copy_(tensor)
        local.memory.scratch = personal
        optimizers: list[Optimizer] = []

        def step(model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
            if not optimizers:
                optimizers.append(_another(optimizer, network))
            with _in_place_of(network, personal):
                take_gradient(optimizers[0], compute_loss)
                self._pull(network.parameters(), local.initial_weights)
                optimizers[0].step()
            return descend(model, optimizer, compute_loss)

        return step

    @torch.no_grad()
    def _pull(self, weights: Iterable[nn.Parameter], anchors: Iterable[Tensor]) -> None:
        """Add λ·(v − θᵗ) to the gradients."""
        for weight, anchor in zip(weights, anchors, strict=True):
            if weight.grad is not None and self.pull:
                weight.grad.add_(weight - anchor, alpha=self.pull)

    def finish(self, local: LocalRound) -> None:
        """Keep the personal model."""
        personal = local.memory.scratch
        if not all(bool(tensor.isfinite().all()) for tensor in personal.values()):
            raise ArithmeticError("training of the personal model gave NaN or infinite numbers")
        local.memory.kept = {name: plain_copy(tensor) for name, tensor in personal.items()}


def _another(optimizer: Optimizer, network: nn.Module) -> Optimizer:
    """An optimizer of the same class, settings and hooks, which clip and measure, but without history."""
    other = type(optimizer)(network.parameters(), **optimizer.defaults)
    other._optimizer_step_pre_hooks.update(optimizer._optimizer_step_pre_hooks)
    other._optimizer_step_post_hooks.update(optimizer._optimizer_step_post_hooks)
    return other


@contextmanager
def _in_place_of(network: nn.Module, state: State) -> Iterator[None]:
    """Run a block with another state in a network, and note there what becomes of it; the network is put back.

    The random state is put back too, so that what follows is as if the block had not run.
    """
    live = network.state_dict()  # detached, but the tensors of the network themselves
    device = next(network.parameters()).device
    with restoring(list(live.values())), torch.random.fork_rng([device] if device.type == "cuda" else []):
        _copy(state, live)
        yield
        _copy(live, state)


@torch.no_grad()
def _copy(source: State, target: State) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
