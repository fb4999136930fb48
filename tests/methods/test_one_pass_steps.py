"""Perturbed steps that cost one pass, worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from toys import Parabolas, TwoWeights

from harmofl.methods.adaptive_step import AdaptivePerturbedDescent
from harmofl.methods.catalogue import fedlesam
from harmofl.methods.one_pass_steps import GlobalPerturbedDescent, MomentumPerturbedDescent
from harmofl.methods.steps import PerturbedDescent, Step, descend

MOMENTUM = {
    "SGD": lambda weights: SGD(weights, lr=0.1, momentum=0.5),
    "SGD with Nesterov's": lambda weights: SGD(weights, lr=0.1, momentum=0.5, nesterov=True),
    "Adam": lambda weights: Adam(weights, lr=0.1),
    "AdamW": lambda weights: AdamW(weights, lr=0.1),
    "RMSprop": lambda weights: RMSprop(weights, lr=0.1, momentum=0.5),
}
MakeOptimizer = Callable[[Any], Optimizer]


def test_momentum_sam_takes_the_gradient_further_along_the_momentum() -> None:
    model, step = TwoWeights(), MomentumPerturbedDescent(radius=0.5)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)
    assert step(model, optimizer, model.loss).item() == pytest.approx(5.5)
    assert model.values == pytest.approx([0.7, 1.6])  # the first step is plain: no momentum yet
    # v = (3, 4): the gradient at (0.7 − 0.3, 1.6 − 0.4) is (1.2, 2.4), and v becomes (2.7, 4.4).
    assert step(model, optimizer, model.loss).item() == pytest.approx((3 * 0.4**2 + 2 * 1.2**2) / 2)
    assert model.values == pytest.approx([0.7 - 0.27, 1.6 - 0.44])


@pytest.mark.parametrize("make", MOMENTUM.values(), ids=MOMENTUM)
def test_momentum_sam_is_the_optimizers_step_with_that_gradient(make: MakeOptimizer) -> None:
    model, curvature = TwoWeights(), torch.tensor([3.0, 2.0], dtype=torch.float64)
    by_hand = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    optimizer, optimizer_by_hand = make(model.parameters()), make([by_hand])
    for _ in range(4):
        state = optimizer_by_hand.state[by_hand]
        momentum = state.get("momentum_buffer", state.get("exp_avg", torch.zeros(2)))
        unit = momentum / momentum.norm() if state else momentum
        MomentumPerturbedDescent(radius=0.3)(model, optimizer, model.loss)
        by_hand.grad = curvature * (by_hand.detach() - 0.3 * unit)
        optimizer_by_hand.step()
        assert model.values == pytest.approx(by_hand.tolist(), rel=1e-12)


@pytest.mark.parametrize(
    ("step", "make"),
    [
        (MomentumPerturbedDescent(radius=0), MOMENTUM["Adam"]),
        (MomentumPerturbedDescent(radius=0.5), lambda weights: SGD(weights, lr=0.1)),  # no momentum
        (AdaptivePerturbedDescent(adaptive_radius=0), MOMENTUM["Adam"]),
    ],
)
def test_without_radius_or_momentum_a_step_is_plain_to_the_bit(step: Step, make: MakeOptimizer) -> None:
    found = []
    for each in (descend, step):
        model = TwoWeights()
        optimizer = make(model.parameters())
        losses = [each(model, optimizer, model.loss).item() for _ in range(3)]
        found.append((losses, model.values))
    assert found[0] == found[1]


def test_one_pass_is_enough_and_the_weights_are_put_back_exactly() -> None:
    model = TwoWeights()
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.5)
    seen: list[list[float]] = []

    def compute_loss() -> Tensor:
        seen.append(model.values)
        return model.loss()

    for _ in range(2):
        MomentumPerturbedDescent(radius_relative=0.1)(model, optimizer, compute_loss)
    length = 0.1 * 5**0.5
    assert len(seen) == 2
    assert seen[1] == pytest.approx([1 - 0.6 * length, 2 - 0.8 * length])
    assert model.values == [1, 2]


# Both sites: 0.5 · (x − b)², one step of rate 0.5 a round. Round 1 is plain: from 0 to 1 and 2, mean 1.5.
SITES = [(1.0, 2.0), (1.0, 4.0)]


def test_fedlesam_takes_the_gradient_back_along_the_global_models_last_move() -> None:
    toy = Parabolas(fedlesam.with_settings(radius=0.5), SITES, steps=1, rate=0.5)
    assert toy.round() == pytest.approx(1.5)
    # The global model came from 0, so gradients are taken at 1.5 − 0.5: −1 and −3, from 1.5 to 2 and 3.
    assert toy.round() == pytest.approx(2.5)


def test_fedlesam_remembers_the_global_model_of_the_sites_own_last_round() -> None:
    toy = Parabolas(fedlesam, SITES, steps=1, rate=0.5)
    toy.round()
    toy.round(answering="A")
    assert [toy.kept[site]["step.x"].item() for site in "AB"] == pytest.approx([1.5, 0.0])


def test_fedlesam_at_radius_zero_is_fedavg() -> None:
    toy = Parabolas(fedlesam.with_settings(radius=0.0), SITES, steps=1, rate=0.5)
    assert [toy.round() for _ in range(3)] == pytest.approx([1.5, 2.25, 2.625])  # half the way to 3


def test_all_steps_of_a_round_go_along_one_direction_which_sums_over_all_weights() -> None:
    assert isinstance(fedlesam.step, GlobalPerturbedDescent)
    toy = Parabolas(fedlesam.with_settings(radius=1.0), [(1.0, 4.0)], steps=2, rate=0.5)
    assert toy.round() == pytest.approx(3.0)  # 2, 3
    # −1 at every step: 3 − 0.5 · (2 − 4) = 4, then 4 − 0.5 · (3 − 4) = 4.5.
    assert toy.round() == pytest.approx(4.5)


def test_adaptive_steps_move_every_weight_in_proportion_to_its_size() -> None:
    model = TwoWeights()
    step = AdaptivePerturbedDescent(adaptive_radius=0.1 * 180**0.5, offset=1.0)
    step(model, SGD(model.parameters(), lr=0.1), model.loss)
    # T = (2, 3), T·g = (6, 12) of norm √180, δ = 0.1 · T²g = (1.2, 3.6): the gradient there is (6.6, 11.2).
    assert model.values == pytest.approx([1 - 0.66, 2 - 1.12])


def test_biases_are_not_scaled() -> None:
    layer = nn.Linear(1, 1, dtype=torch.float64)
    nn.init.constant_(layer.weight, 2.0)
    nn.init.constant_(layer.bias, 5.0)
    seen: list[list[float]] = []

    def compute_loss() -> Tensor:
        seen.append([layer.weight.item(), layer.bias.item()])
        return (layer.weight + 2 * layer.bias).sum()

    AdaptivePerturbedDescent(adaptive_radius=8**0.5, offset=0.0)(layer, SGD(layer.parameters(), lr=0.1), compute_loss)
    # T = (2, 1): T·g = (2, 2) of norm √8, δ = T²g = (4, 2).
    assert seen == [pytest.approx([2, 5]), pytest.approx([6, 7])]


@pytest.mark.parametrize(("step", "same"), [(AdaptivePerturbedDescent(0.3, 0.0), True), (PerturbedDescent(0.3), False)])
def test_an_adaptive_perturbation_means_the_same_however_layers_are_scaled(step: Step, same: bool) -> None:
    losses = []
    for scale in (1.0, 10.0):  # the product of the two weights, and so the function, stays
        model = TwoWeights(1.0 * scale, 2.0 / scale)
        seen: list[float] = []

        def compute_loss(model: TwoWeights = model, seen: list[float] = seen) -> Tensor:
            loss = (model.first * model.second).square()
            seen.append(loss.item())
            return loss

        step(model, SGD(model.parameters(), lr=0.1), compute_loss)
        losses.append(seen[1])
    assert (losses[0] == pytest.approx(losses[1])) == same


def valley(x: Tensor, y: Tensor) -> Tensor:
    """Zero all along y = 0; the valley is the flatter the nearer x is to zero."""
    return (0.5 + x.square()) * y.square() / 2


@pytest.mark.parametrize(
    ("step", "stays"),
    [
        (descend, True),
        (PerturbedDescent(radius=0.2), False),
        (MomentumPerturbedDescent(radius=0.2), False),
        (AdaptivePerturbedDescent(adaptive_radius=0.4, offset=0.5), False),
    ],
)
def test_perturbed_steps_go_where_the_minimum_is_flat(step: Step, stays: bool) -> None:
    model = TwoWeights(1.0, 0.3)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)
    for _ in range(600):
        step(model, optimizer, lambda: valley(model.first, model.second))
    x, y = model.values
    assert abs(y) < 0.1  # in the valley
    assert (abs(x) > 0.8) if stays else (abs(x) < 0.2)
