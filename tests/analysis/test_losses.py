"""The loss around a model whose loss is a known quadratic."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harmofl.analysis.losses import losses_at, mean_loss, surface
from harmofl.models.catalogue import densenet_small
from harmofl.models.network import build_network
from harmofl.states import snapshot
from runs import equal


class Bowl(nn.Module):
    """Ignores its inputs; with `lowest` as the loss its value is ½ (w₀ − a)² + 2 (w₁ − b)²."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -1.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight


def bowl_loss(weight: Tensor, lowest: Tensor) -> Tensor:
    return 0.5 * (weight[0] - lowest[0]) ** 2 + 2 * (weight[1] - lowest[1]) ** 2


BATCHES = [(torch.zeros(1, 1), torch.tensor([1.0, -1.0]))]
PLANE = [[torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 1.0])]]
AXIS = np.array([-1.0, 0.0, 0.5, 2.0])


def test_surface_of_a_bowl() -> None:
    rows = list(surface(Bowl(), PLANE, AXIS, BATCHES, bowl_loss))
    expected = [[0.5 * first**2 + 2 * second**2 for first in AXIS] for second in AXIS]
    np.testing.assert_allclose(rows, expected)


def test_points_may_lie_along_one_direction() -> None:
    found = list(losses_at(Bowl(), [[torch.tensor([1.0, 1.0])]], np.array([[0.0], [2.0]]), BATCHES, bowl_loss))
    assert found == [0.0, 10.0]


def test_mean_loss_counts_images() -> None:
    batches = [(torch.zeros(3, 1), torch.tensor([1.0, 0.0])), (torch.zeros(1, 1), torch.tensor([-1.0, -1.0]))]
    assert mean_loss(Bowl(), batches, bowl_loss) == pytest.approx((3 * 2.0 + 1 * 2.0) / 4)


@pytest.mark.parametrize("leaves_early", [False, True])
def test_weights_buffers_and_modes_stay_bit_for_bit(leaves_early: bool) -> None:
    network = build_network(densenet_small, 3, 2, 8, "batch", seed=0)
    network.train()
    before = snapshot(network)
    batches = [(torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 0, 1]))]
    direction = [torch.rand_like(weight) for weight in network.parameters()]
    points = np.array([[0.1, 0.3], [1.7, -0.2]])
    found = losses_at(network, [direction, direction], points, batches, nn.functional.cross_entropy)
    if leaves_early:
        next(found)
        found.close()  # type: ignore[attr-defined]
    else:
        assert len(set(found)) == 2
    list(surface(network, [direction, direction], np.array([0.0, 0.5]), batches, nn.functional.cross_entropy))
    assert equal(before, snapshot(network))
    assert network.training
    assert torch.is_grad_enabled()


def test_the_number_of_cores_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_network(densenet_small, 3, 2, 8, "batch", seed=0)
    batches = [(torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 0, 1]))]
    plane = [[torch.rand_like(weight) for weight in network.parameters()] for _ in range(2)]
    found = []
    for cores in (1, 3):
        monkeypatch.setattr("harmofl.analysis.losses.num_cores", lambda cores=cores: cores)
        found.append(list(surface(network, plane, AXIS, batches, nn.functional.cross_entropy)))
    assert found[0] == found[1]
