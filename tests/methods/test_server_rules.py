import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harmofl.methods.aggregation import start_aggregation
from harmofl.methods.server_rules import AdaptiveMoments, Average, NormalizedAverage, ServerMomentum, ServerRule
from harmofl.states import State

START = {"weight": torch.tensor([1.0, 2.0]), "mean": torch.tensor([10.0]), "count": torch.tensor(7)}
SITES = [
    {"weight": torch.tensor([2.0, 0.0]), "mean": torch.tensor([20.0]), "count": torch.tensor(5)},
    {"weight": torch.tensor([5.0, 4.0]), "mean": torch.tensor([40.0]), "count": torch.tensor(9)},
]

weights = arrays(np.float32, 4, elements=st.floats(-1e6, 1e6, width=32))


def combined(
    rule: ServerRule,
    site_weights: Sequence[float] = (1, 1),
    num_steps: Sequence[int] = (1, 1),
    momentum: float = 0.0,
    learning_rate: float = 1.0,
    moments: State | None = None,
    start: State = START,
) -> tuple[State, State]:
    aggregation = start_aggregation(rule, start, trainable=["weight"])
    for site, weight, steps in zip(SITES, site_weights, num_steps, strict=True):
        aggregation.add(site, weight, steps, momentum)
    return aggregation.finish(moments or {}, learning_rate)


def test_average_is_the_mean_of_the_sites_models() -> None:
    state, moments = combined(Average())
    assert state["weight"].tolist() == [3.5, 2.0]
    assert moments == {}


def test_average_follows_the_sites_weights() -> None:
    state, _ = combined(Average(), site_weights=(30, 10))
    assert state["weight"].tolist() == [2.75, 1.0]  # three quarters and one quarter


def test_server_learning_rate_is_the_part_of_the_way_towards_the_sites() -> None:
    state, _ = combined(Average(), learning_rate=0.5)
    assert state["weight"].tolist() == [1 + 0.5 * 2.5, 2.0]


@pytest.mark.parametrize("rule", [Average(), NormalizedAverage(), AdaptiveMoments()])
@pytest.mark.parametrize("learning_rate", [1.0, 0.5])
def test_buffers_take_the_weighted_mean_or_the_maximum_whatever_the_rule(
    rule: ServerRule, learning_rate: float
) -> None:
    state, moments = combined(rule, (30, 10), num_steps=(1, 8), momentum=0.9, learning_rate=learning_rate)
    assert state["mean"].tolist() == pytest.approx([25])  # three quarters of 20, one quarter of 40
    assert state["count"].item() == 9
    assert state["count"].dtype == torch.int64
    assert not any("mean" in name or "count" in name for name in moments)


def test_states_keep_their_types_and_the_start_is_left_alone() -> None:
    start = {"weight": torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "count": torch.tensor(0)}
    aggregation = start_aggregation(Average(), start, trainable=["weight"])
    aggregation.add({"weight": torch.tensor([3.0, 4.0], dtype=torch.bfloat16), "count": torch.tensor(1)}, 1, 1, 0)
    state, _ = aggregation.finish({}, 1.0)
    assert state["weight"].dtype == torch.bfloat16
    assert start["weight"].tolist() == [1, 2]


def test_only_what_travels_is_combined() -> None:
    state, _ = combined(Average(), start={"weight": START["weight"]})
    assert state.keys() == {"weight"}


@pytest.mark.parametrize("num_steps", [1, 2, 7])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_effective_steps_are_the_sum_of_what_each_gradient_moves(num_steps: int, momentum: float) -> None:
    # A gradient with k steps still to come moves the weights by 1 + ρ + … + ρ^(k−1).
    moves = [sum(momentum**age for age in range(left)) for left in range(1, num_steps + 1)]
    assert NormalizedAverage().effective_steps(num_steps, momentum) == pytest.approx(sum(moves))


def test_effective_steps_by_hand() -> None:
    assert NormalizedAverage().effective_steps(5, 0.0) == 5
    assert NormalizedAverage().effective_steps(2, 0.9) == pytest.approx(1 + 1.9)
    assert Average().effective_steps(5, 0.9) == 1


def test_effective_steps_are_how_far_sgd_with_momentum_goes() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    for _ in range(4):
        weight.grad = torch.tensor([-1.0])
        optimizer.step()
    assert NormalizedAverage().effective_steps(4, 0.9) == pytest.approx(weight.item())


def test_normalized_average_divides_by_the_effective_steps_by_hand() -> None:
    # a = 1 and 4, mean 2.5; updates (1, -2) and (4, 2)/4: their mean is (1, -0.75).
    state, _ = combined(NormalizedAverage(), num_steps=(1, 4))
    assert state["weight"].tolist() == pytest.approx([1 + 2.5 * 1, 2 - 2.5 * 0.75])


def test_normalized_average_with_momentum_and_weights_by_hand() -> None:
    # p = 0.75, 0.25; a = 1 and 2.9, mean 1.475; updates (1, -2) and (4, 2)/2.9.
    state, _ = combined(NormalizedAverage(), (3, 1), num_steps=(1, 2), momentum=0.9)
    mean = [0.75 * 1 + 0.25 * 4 / 2.9, 0.75 * -2 + 0.25 * 2 / 2.9]
    assert state["weight"].tolist() == pytest.approx([1 + 1.475 * mean[0], 2 + 1.475 * mean[1]])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_normalized_average_is_the_average_at_equal_numbers_of_steps(momentum: float) -> None:
    normalized, _ = combined(NormalizedAverage(), (3, 1), num_steps=(6, 6), momentum=momentum)
    average, _ = combined(Average(), (3, 1), num_steps=(6, 6), momentum=momentum)
    torch.testing.assert_close(normalized["weight"], average["weight"])


def test_server_momentum_by_hand_over_two_rounds() -> None:
    rule = ServerMomentum(server_momentum=0.5)
    change, memory = rule.move({"w": torch.tensor([2.0])}, {}, 0.1)
    assert change["w"].tolist() == pytest.approx([0.2])
    change, memory = rule.move({"w": torch.tensor([4.0])}, memory, 0.1)
    assert memory["w"].tolist() == [5.0]  # half of 2, and 4
    assert change["w"].tolist() == pytest.approx([0.5])


def test_adaptive_moments_by_hand_over_two_rounds() -> None:
    rule = AdaptiveMoments(beta1=0.9, beta2=0.99, tau=1e-3)
    # Both rounds bring the update (2.5, 0): m = 0.25, then 0.9·0.25 + 0.25; v = 0.0625, then 0.99·0.0625 + 0.0625.
    change, moments = rule.move({"w": torch.tensor([2.5, 0.0])}, {}, 0.01)
    assert moments["first.w"].tolist() == pytest.approx([0.25, 0])
    assert moments["second.w"].tolist() == pytest.approx([0.0625, 0])
    assert change["w"].tolist() == pytest.approx([0.01 * 0.25 / (0.25 + 1e-3), 0])
    change, moments = rule.move({"w": torch.tensor([2.5, 0.0])}, moments, 0.01)
    assert moments["first.w"].tolist() == pytest.approx([0.475, 0])
    assert moments["second.w"].tolist() == pytest.approx([0.124375, 0])
    assert change["w"].tolist() == pytest.approx([0.01 * 0.475 / (math.sqrt(0.124375) + 1e-3), 0])


def test_adaptive_moments_move_the_global_weights() -> None:
    rule = AdaptiveMoments(beta1=0.9, beta2=0.99, tau=1e-3)
    state, moments = combined(rule, learning_rate=0.01)
    assert state["weight"].tolist() == pytest.approx([1 + 0.01 * 0.25 / 0.251, 2.0])
    assert moments["first.weight"].tolist() == pytest.approx([0.25, 0])


def test_adaptive_moments_approach_the_average_at_beta1_zero_and_a_large_rate_equal_to_tau() -> None:
    state, _ = combined(AdaptiveMoments(beta1=0, tau=1e6), (3, 1), learning_rate=1e6)
    average, _ = combined(Average(), (3, 1))
    torch.testing.assert_close(state["weight"], average["weight"], rtol=1e-5, atol=0)


@given(weights, weights, st.floats(0.01, 1e4), st.integers(1, 50))
def test_one_site_alone_gets_back_exactly_its_own_weights(
    start: np.ndarray, own: np.ndarray, weight: float, num_steps: int
) -> None:
    aggregation = start_aggregation(Average(), {"w": torch.from_numpy(start)}, trainable=["w"])
    aggregation.add({"w": torch.from_numpy(own)}, weight, num_steps, 0.9)
    state, _ = aggregation.finish({}, 1.0)
    assert torch.equal(state["w"], torch.from_numpy(own))


@given(weights, weights, weights, st.floats(0.01, 1e4), st.floats(0.01, 1e4))
def test_the_average_lies_between_the_sites(
    start: np.ndarray, first: np.ndarray, second: np.ndarray, first_weight: float, second_weight: float
) -> None:
    aggregation = start_aggregation(Average(), {"w": torch.from_numpy(start)}, trainable=["w"])
    for own, weight in ((first, first_weight), (second, second_weight)):
        aggregation.add({"w": torch.from_numpy(own)}, weight, 1, 0.0)
    state, _ = aggregation.finish({}, 1.0)
    assert (state["w"].numpy() >= np.minimum(first, second)).all()
    assert (state["w"].numpy() <= np.maximum(first, second)).all()


@pytest.mark.parametrize("settings", [{"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0}, {"tau": float("inf")}])
def test_invalid_moments_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        AdaptiveMoments(**settings)


def test_pooled_variances_are_those_of_all_images_together() -> None:
    first, second = torch.randn(500) * 2 + 1, torch.randn(500) * 3 - 4
    state = {"norm.running_mean": torch.zeros(1), "norm.running_var": torch.ones(1)}
    pooled = start_aggregation(Average(), state, trainable=[], pooled={"norm.running_var": "norm.running_mean"})
    plain = start_aggregation(Average(), state, trainable=[])
    for images in (first, second):
        of_site = {
            "norm.running_mean": images.mean().reshape(1),
            "norm.running_var": images.var(correction=0).reshape(1),
        }
        for aggregation in (pooled, plain):
            aggregation.add(of_site, weight=1, num_steps=1, momentum=0)
    together = torch.cat([first, second])
    result, _ = pooled.finish({}, 1.0)
    torch.testing.assert_close(result["norm.running_var"], together.var(correction=0).reshape(1))
    torch.testing.assert_close(result["norm.running_mean"], together.mean().reshape(1))
    averaged, _ = plain.finish({}, 1.0)
    mean_of_variances = (first.var(correction=0) + second.var(correction=0)) / 2
    torch.testing.assert_close(averaged["norm.running_var"], mean_of_variances.reshape(1))


def test_pooled_variances_of_sites_that_agree_are_never_below_zero() -> None:
    state = {"norm.running_mean": torch.linspace(-3, 3, 200), "norm.running_var": torch.zeros(200)}
    aggregation = start_aggregation(Average(), state, trainable=[], pooled={"norm.running_var": "norm.running_mean"})
    for weight in (137, 211, 98, 173):
        aggregation.add(state, weight, num_steps=1, momentum=0)
    variances = aggregation.finish({}, 1.0)[0]["norm.running_var"]
    assert (variances >= 0).all()
    assert variances.max() < 1e-12


def test_no_site_makes_the_normalized_step_longer_than_the_steps_of_all_others() -> None:
    """Who says 2⁴⁰ steps says no more than who says four: the others made 1 + 3."""
    aggregation = start_aggregation(NormalizedAverage(), {"w": torch.tensor(0.0)}, trainable=["w"])
    for moved, steps in ((1.0, 1), (3.0, 3), (1.0, 2**40)):
        aggregation.add({"w": torch.tensor(moved)}, 1.0, steps, 0.0)
    state, _ = aggregation.finish({}, 1.0)
    assert state["w"].item() == pytest.approx((1 + 3 + 4) / 3 * (1 / 1 + 3 / 3) / 3)  # mean steps · mean of wᵢ/aᵢ
