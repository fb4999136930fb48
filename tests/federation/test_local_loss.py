from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harmofl.federation.local_loss import LocalLoss
from harmofl.federation.numerics import Numerics
from harmofl.methods.penalties import Term
from harmofl.models.network import Network
from harmofl.settings import TrainingSettings


def sum_of_squares(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.flatten() - targets).square().sum()


def doubling_network() -> Network:
    body = nn.Sequential(nn.Identity(), nn.Linear(1, 1, bias=False))
    nn.init.constant_(body[1].weight, 2.0)
    return Network(body, "0")


def local_loss(network: Network, terms: Sequence[Term] = (), represents: bool = False, **training: Any) -> LocalLoss:
    numerics = Numerics(network, TrainingSettings(**training), torch.device("cpu"))
    return LocalLoss(network, numerics, sum_of_squares, terms, represents)


INPUTS, TARGETS = torch.arange(8.0).view(8, 1), torch.zeros(8)


def test_the_loss_of_a_batch_is_the_tasks() -> None:
    loss = local_loss(doubling_network()).of(INPUTS, TARGETS)
    assert loss().item() == 4 * sum(number**2 for number in range(8))


def test_terms_see_weights_inputs_and_representation_and_are_added() -> None:
    network = doubling_network()
    terms = [lambda batch: batch.representation.sum(), lambda batch: batch.weights[0].sum() + batch.inputs.max()]
    loss = local_loss(network, terms, represents=True).of(INPUTS, TARGETS)
    assert loss().item() == 4 * 140 + 28 + 2 + 7


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 4), (0.3, 3), (0.125, 2), (0.01, 2)])
def test_a_part_is_the_first_images_and_two_at_least(fraction: float, count: int) -> None:
    part = local_loss(doubling_network()).of(INPUTS, TARGETS).on_part(fraction)
    assert part().item() == 4 * sum(number**2 for number in range(count))
