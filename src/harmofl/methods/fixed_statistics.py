"""FixBN: batch norm learns its statistics in the first rounds only, and is trained with them afterwards.

Zhong, Chen and Chao, "Making Batch Normalization Great in Federated Deep Learning", 2023. In the first part of the
rounds (exploration) sites train as in FedAvg. Then (calibration) statistics stay at what the server averaged last, and
layers normalize with them in training too, as they do in use: every site computes its gradients with the same
statistics. The paper also keeps the momentum of SGD from round to round: so do we, at the sites, unless
`training.optimizer_state` is "reset". No momentum is kept at the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from harmofl.errors import STRICT
from harmofl.methods.pieces import LocalRound
from harmofl.methods.steps import ComputeLoss, RoundStep, Step, descend


@dataclass(frozen=True, config=STRICT)
class FixedStatistics(RoundStep):
    """Descends with batch norm statistics that no longer change, once a part of the rounds is over.

    Args:
        exploration: The part of the run's rounds in which statistics are learned; FedAvg at 1.

    Example:
        >>> method = FixedStatistics(exploration=0.5)
        >>> [method.is_fixed(number, num_rounds=5) for number in (1, 2, 3, 4, 5)]
        [False, False, True, True, True]
    """

    exploration: Annotated[float, Field(ge=0, le=1)] = 0.5

    def is_fixed(self, number: int, num_rounds: int) -> bool:
        """Whether statistics stay as they are in a round."""
        return number > self.exploration * num_rounds + 1e-9  # 0.7 · 10 is a little more than 7

    def start(self, local: LocalRound) -> Step:
        """Return plain descent, or one that leaves statistics alone."""
        if not self.is_fixed(local.number, local.num_rounds):
            return descend
        layers = [layer for layer in local.model.network.modules() if isinstance(layer, _BatchNorm)]

        def step(model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
            with normalizing_as_in_use(layers):
                return descend(model, optimizer, compute_loss)

        return step


@contextmanager
def normalizing_as_in_use(layers: Sequence[_BatchNorm]) -> Iterator[None]:
    """For a block, let batch norm layers use their running statistics and leave them as they are."""
    before = [layer.training for layer in layers]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer, was_training in zip(layers, before, strict=True):
            layer.train(was_training)
