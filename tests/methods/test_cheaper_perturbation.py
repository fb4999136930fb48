"""Perturbed steps that reuse a direction or find it on a part of the batch, worked out by hand."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import LBFGS, SGD
from toys import Point, TwoWeights

from harmofl import PerturbedDescent, UsageError
from harmofl.methods.catalogue import harmofl
from harmofl.methods.perturbation import Direction
from harmofl.methods.steps import descend, descend_aside, take_gradient


@dataclass
class MeanDistance:
    """½ · mean (x − b)² over the numbers b of a batch, with how many of them each pass has seen."""

    point: Point
    numbers: Tensor
    seen: list[int]

    def __call__(self) -> Tensor:
        self.seen.append(len(self.numbers))
        return (self.point.x - self.numbers).square().mean() / 2

    def on_part(self, fraction: float) -> "MeanDistance":
        return MeanDistance(self.point, self.numbers[: round(fraction * len(self.numbers))], self.seen)


@dataclass
class ClassesOf:
    """The cross-entropy of a network on three images."""

    network: nn.Module
    count: int = 3

    def __call__(self) -> Tensor:
        images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
        return F.cross_entropy(self.network(images[: self.count]), torch.tensor([0, 1, 1])[: self.count])

    def on_part(self, fraction: float) -> "ClassesOf":
        return ClassesOf(self.network, 2)


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 2)
    )


def test_a_direction_is_reused_at_the_weights_of_each_step() -> None:
    model = TwoWeights()
    step, optimizer = PerturbedDescent(radius=0.5, reuse=2).start(), SGD(model.parameters(), lr=0.1)
    # δ = 0.5 · (3, 4)/5 = (0.3, 0.4); the gradient at (1.3, 2.4) is (3.9, 4.8).
    assert step(model, optimizer, model.loss).item() == pytest.approx(5.5)
    assert model.values == pytest.approx([0.61, 1.52])
    # The same δ: the gradient at (0.91, 1.92) is (2.73, 3.84), and the loss is that of this one pass.
    assert step(model, optimizer, model.loss).item() == pytest.approx((3 * 0.91**2 + 2 * 1.92**2) / 2)
    assert model.values == pytest.approx([0.337, 1.136])
    # A new direction, that of the gradient (1.011, 2.272) there.
    norm = (1.011**2 + 2.272**2) ** 0.5
    step(model, optimizer, model.loss)
    first, second = 0.337 + 0.5 * 1.011 / norm, 1.136 + 0.5 * 2.272 / norm
    assert model.values == pytest.approx([0.337 - 0.3 * first, 1.136 - 0.2 * second])


@pytest.mark.parametrize(("reuse", "passes"), [(1, 10), (2, 8), (5, 6)])
def test_only_steps_that_find_a_direction_make_two_passes(reuse: int, passes: int) -> None:
    point, seen = Point(1.0), []
    loss = MeanDistance(point, torch.zeros(4), seen)
    step, optimizer = PerturbedDescent(radius=0.1, reuse=reuse).start(), SGD(point.parameters(), lr=0.1)
    for _ in range(5):
        step(point, optimizer, loss)
    assert len(seen) == passes


def test_every_round_starts_with_a_direction_of_its_own() -> None:
    settings = PerturbedDescent(radius=0.1, reuse=5)
    point, seen = Point(1.0), []
    for _ in range(2):
        settings.start()(point, SGD(point.parameters(), lr=0.1), MeanDistance(point, torch.zeros(4), seen))
    assert len(seen) == 4


def test_a_direction_is_found_on_a_part_of_the_batch() -> None:
    point, seen = Point(1.0), []
    loss = MeanDistance(point, torch.tensor([2.0, 2.0, -2.0, -2.0]), seen)
    # The part's gradient is 1 − 2 = −1, so δ = −0.5; the gradient of all at 0.5 is 0.5, and their loss is 2.125.
    found = PerturbedDescent(radius=0.5, ascent_fraction=0.5)(point, SGD(point.parameters(), lr=0.1), loss)
    assert seen == [2, 4]
    assert point.x.item() == pytest.approx(0.95)
    assert found.item() == pytest.approx((2 * 1.5**2 + 2 * 2.5**2) / 8)


def test_the_part_leaves_no_trace_but_its_direction() -> None:
    network, plain = small_network(), small_network()
    torch.manual_seed(3)
    PerturbedDescent(radius=0.5, ascent_fraction=0.5)(network, SGD(network.parameters(), lr=0.1), ClassesOf(network))
    after = torch.get_rng_state()
    torch.manual_seed(3)
    optimizer = SGD(plain.parameters(), lr=0.1)
    before = [buffer.clone() for buffer in plain.buffers()]
    take_gradient(optimizer, ClassesOf(plain, 2))
    directions = {weight: weight.grad for weight in plain.parameters()}
    for buffer, value in zip(plain.buffers(), before, strict=True):
        buffer.copy_(value)
    torch.manual_seed(3)
    descend_aside(optimizer, ClassesOf(plain), Direction(directions, PerturbedDescent(radius=0.5)))
    assert torch.equal(after, torch.get_rng_state())
    assert network[1].num_batches_tracked.item() == 1
    assert all(
        torch.equal(one, other)
        for one, other in zip(network.state_dict().values(), plain.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("settings", [PerturbedDescent(radius=0, reuse=3), PerturbedDescent(radius=0)])
def test_radius_zero_is_plain_descent_however_directions_are_found(settings: PerturbedDescent) -> None:
    found = []
    for step in (descend, settings.start()):
        network = small_network()
        optimizer = SGD(network.parameters(), lr=0.1)
        torch.manual_seed(2)
        losses = [step(network, optimizer, ClassesOf(network)) for _ in range(3)]
        found.append([*losses, *network.state_dict().values()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_direction_for_one_step_of_the_whole_batch_is_the_exact_step() -> None:
    exact = PerturbedDescent(radius=0.05, reuse=1, ascent_fraction=1.0)
    assert exact == PerturbedDescent(radius=0.05)
    assert exact.start() is exact


def test_what_reuses_a_direction_needs_a_memory() -> None:
    model = TwoWeights()
    with pytest.raises(TypeError, match=r"reuse = 3: call start\(\) once"):
        PerturbedDescent(radius=0.5, reuse=3)(model, SGD(model.parameters(), lr=0.1), model.loss)


def test_a_loss_that_cannot_be_divided_is_an_error() -> None:
    model = TwoWeights()
    with pytest.raises(TypeError, match=r"ascent_fraction = 0.5: compute_loss needs a method on_part"):
        PerturbedDescent(ascent_fraction=0.5)(model, SGD(model.parameters(), lr=0.1), model.loss)


def test_lbfgs_is_refused_here_too() -> None:
    model = TwoWeights()
    with pytest.raises(TypeError, match="LBFGS"):
        PerturbedDescent(reuse=2).start()(model, LBFGS(model.parameters()), model.loss)


@pytest.mark.parametrize(
    ("name", "value"), [("reuse", 0), ("reuse", 1.5), ("ascent_fraction", 0), ("ascent_fraction", 2)]
)
def test_settings_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"method.{name} = {value}"):
        harmofl.with_settings(**{name: value})
