"""The constants of quadratic losses F_i = ½ a_i ‖θ − c_i‖², worked out by hand: ∇F_i = a_i (θ − c_i), β = a_i."""

import pytest
import torch
from torch import nn

from harmofl.analysis.assumed_constants import (
    Constants,
    Point,
    estimate_beta,
    estimate_constants,
    mean_step,
    moved_by,
    second_line,
)
from harmofl.analysis.drift_terms import SiteGradient, bound


def bowl(steepness: float, centre: float, place: float) -> SiteGradient:
    gradient = steepness * (place - centre)
    return SiteGradient(torch.tensor([gradient, 0.0]), variance=0.0, loss=0.5 * steepness * (place - centre) ** 2)


def test_a_point_holds_means_over_sites() -> None:
    point = Point.of([bowl(1.0, 1.0, 0.0), bowl(3.0, -1.0, 0.0)])  # gradients −1 and 3, losses ½ and 3/2
    assert (point.mean_square, point.squared_mean, point.loss) == (5.0, 1.0, 1.0)


def test_beta_is_the_steepness_of_a_bowl() -> None:
    step = [torch.tensor([2.0]), torch.tensor([[0.0]])]
    assert estimate_beta(bowl(3.0, 1.0, 0.0), bowl(3.0, 1.0, 2.0), step) == pytest.approx(3.0)
    assert estimate_beta(bowl(3.0, 1.0, 0.0), bowl(3.0, 1.0, 0.0), [torch.zeros(1)]) == 0.0


def test_constants_are_the_least_that_fit_every_point() -> None:
    points = [Point(5.0, 1.0, 1.0), Point(8.0, 2.0, 0.5)]
    assert estimate_constants(points, [1.0, 3.0]) == Constants(beta=3.0, squared_g=6.0, squared_g_if_convex=5.0)
    assert estimate_constants(points, [100.0]).squared_g_if_convex == 0.0


def test_with_one_point_the_second_line_is_the_first() -> None:
    point = Point(5.0, 1.0, 1.0)
    first = bound([1.0, 9.0], variance=10.0, epsilon=4.0, num_steps=5, step_size=0.2)
    found = second_line(point, estimate_constants([point], [2.0]), first, num_steps=5, step_size=0.2)
    assert found["in general"] == pytest.approx(sum(first.values()))
    # G² = 5 − 2 · 2 · 1 and Kη = 1: 4 · 1 + 8 · 2 · 1, beside the other terms, 16 and 4.
    assert found["if convex"] == pytest.approx(4 + 16 + 16 + 4)


def test_the_mean_step_moves_a_network_for_a_block() -> None:
    network = nn.Linear(1, 1)
    before = network.weight.item()
    step = mean_step([[torch.ones(1, 1), torch.zeros(1)], [torch.zeros(1, 1), torch.zeros(1)]])
    with moved_by(network, step):
        assert network.weight.item() == pytest.approx(before + 0.5)
    assert network.weight.item() == before
