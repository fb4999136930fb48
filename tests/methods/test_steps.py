import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop
from toys import TwoWeights

from harmofl import AmplitudeNormalization, PerturbedDescent
from harmofl.methods.steps import Step, descend

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda weights: SGD(weights, lr=0.1),
    "SGD with momentum and decay": lambda weights: SGD(weights, lr=0.1, momentum=0.9, weight_decay=0.01),
    "SGD with Nesterov momentum": lambda weights: SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda weights: Adam(weights, lr=0.1),
    "Adam with AMSGrad": lambda weights: Adam(weights, lr=0.1, amsgrad=True),
    "AdamW": lambda weights: AdamW(weights, lr=0.1),
    "RMSprop": lambda weights: RMSprop(weights, lr=0.1, momentum=0.5),
    "Adagrad": lambda weights: Adagrad(weights, lr=0.1),
    "NAdam": lambda weights: NAdam(weights, lr=0.1),
}


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 2)
    )


def loss_of(network: nn.Module) -> Callable[[], Tensor]:
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return lambda: F.cross_entropy(network(images), torch.tensor([0, 1, 1]))


def test_descend_makes_one_step_and_returns_the_loss_before_it() -> None:
    model = TwoWeights()
    loss = descend(model, SGD(model.parameters(), lr=0.1), model.loss)
    assert loss.item() == pytest.approx(5.5)
    assert not loss.requires_grad
    assert model.values == pytest.approx([1 - 0.3, 2 - 0.4])


def test_perturbed_descent_steps_with_the_gradient_found_at_the_end_of_the_perturbation() -> None:
    model = TwoWeights()
    loss = PerturbedDescent(radius=0.5)(model, SGD(model.parameters(), lr=0.1), model.loss)
    # δ = 0.5 · (3, 4)/5 = (0.3, 0.4); the gradient at (1.3, 2.4) is (3.9, 4.8).
    assert loss.item() == pytest.approx(5.5)
    assert not loss.requires_grad
    assert model.values == pytest.approx([1 - 0.39, 2 - 0.48])


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_perturbed_descent_is_the_optimizers_step_with_that_gradient(make: Callable[[Any], Optimizer]) -> None:
    model, curvature = TwoWeights(), torch.tensor([3.0, 2.0], dtype=torch.float64)
    by_hand = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    optimizer, optimizer_by_hand = make(model.parameters()), make([by_hand])
    for _ in range(4):
        PerturbedDescent(radius=0.3)(model, optimizer, model.loss)
        gradient = curvature * by_hand.detach()
        by_hand.grad = curvature * (by_hand.detach() + 0.3 * gradient / gradient.square().sum().sqrt())
        optimizer_by_hand.step()
        assert model.values == pytest.approx(by_hand.tolist(), rel=1e-12)


def test_weights_are_put_back_exactly() -> None:
    network = small_network()
    before = copy.deepcopy(list(network.parameters()))
    PerturbedDescent(radius=0.05)(network, SGD(network.parameters(), lr=0.0), loss_of(network))
    assert all(torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))


def test_weights_are_put_back_exactly_if_the_second_pass_fails() -> None:
    model = TwoWeights()
    calls = []

    def compute_loss() -> Tensor:
        calls.append(model.values)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return model.loss()

    with pytest.raises(RuntimeError, match="out of memory"):
        PerturbedDescent(radius=0.5)(model, SGD(model.parameters(), lr=0.1), compute_loss)
    assert calls[1] == pytest.approx([1.3, 2.4])
    assert model.values == [1, 2]


def test_the_loss_is_computed_twice_and_the_perturbation_has_the_radius_as_its_length() -> None:
    network = small_network()
    seen = []
    compute_loss = loss_of(network)

    def watched() -> Tensor:
        seen.append(nn.utils.parameters_to_vector(network.parameters()).detach())
        return compute_loss()

    PerturbedDescent(radius=0.05)(network, SGD(network.parameters(), lr=0.1), watched)
    assert len(seen) == 2
    assert (seen[1] - seen[0]).norm().item() == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_radius_zero_equals_plain_descent_to_the_bit(make: Callable[[Any], Optimizer]) -> None:
    states = []
    for step in (descend, PerturbedDescent(radius=0)):
        network = small_network()
        optimizer = make(network.parameters())
        torch.manual_seed(2)
        losses = [step(network, optimizer, loss_of(network)) for _ in range(3)]
        states.append([*losses, *network.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))


def test_buffers_are_left_as_the_first_pass_left_them() -> None:
    perturbed, plain = small_network(), small_network()
    PerturbedDescent(radius=0.5)(perturbed, SGD(perturbed.parameters(), lr=0.1), loss_of(perturbed))
    descend(plain, SGD(plain.parameters(), lr=0.1), loss_of(plain))
    assert perturbed[1].num_batches_tracked.item() == 1
    assert not torch.equal(plain[1].running_mean, torch.zeros(2))
    assert all(torch.equal(one, other) for one, other in zip(perturbed.buffers(), plain.buffers(), strict=True))


def test_a_harmonizer_inside_the_model_learns_a_batch_once() -> None:
    layer = AmplitudeNormalization((1, 1, 1), "dc", decay=0.5)
    model = nn.Sequential(layer, nn.Conv2d(1, 1, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    for mean in (1.0, 4.0):
        images = torch.full((1, 1, 1, 1), mean)
        PerturbedDescent(radius=0.1)(model, optimizer, lambda images=images: model(images).square().sum())
    # From zero: 0.5, then 0.5·0.5 + 0.5·4 = 2.25; the weights sum to 0.75.
    assert layer.amplitude.item() == pytest.approx(2.25 / 0.75)


@pytest.mark.parametrize("band", ["dc", "full"])
def test_both_passes_see_the_same_images_while_a_harmonizer_learns(band: Any) -> None:
    model = nn.Sequential(AmplitudeNormalization((1, 2, 2), band), nn.Conv2d(1, 1, 1))
    seen: list[Tensor] = []
    model[1].register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0].detach().clone()))
    optimizer = SGD(model.parameters(), lr=0.1)
    for number in range(3):
        images = number + torch.rand(2, 1, 2, 2, generator=torch.Generator().manual_seed(number))
        PerturbedDescent(radius=0.1)(model, optimizer, lambda images=images: model(images).square().sum())
    assert all(torch.equal(first, second) for first, second in zip(seen[::2], seen[1::2], strict=True))


class Assigning(nn.Module):
    """Counts its passes in a buffer that it assigns anew, and keeps its last output in one that is None at first."""

    count: Tensor
    last: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", None)
        self.linear = nn.Linear(2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        self.count = self.count + 1
        output: Tensor = self.linear(inputs) * self.count if self.last is None else self.linear(inputs) + self.last
        self.last = output.detach()
        return output


def test_buffers_that_a_module_assigns_are_put_back_too() -> None:
    model, inputs, losses = Assigning(), torch.ones(3, 2), []

    def compute_loss() -> Tensor:
        losses.append((model.count.item(), model.last))
        return model(inputs).square().sum()

    PerturbedDescent(radius=0.1)(model, SGD(model.parameters(), lr=0.0), compute_loss)
    assert losses == [(0, None), (0, None)]
    assert model.count.item() == 1
    assert model.last is not None
    assert torch.equal(model.last, model.linear(inputs))


def test_buffers_are_left_as_the_first_pass_left_them_if_the_second_fails() -> None:
    network, calls = small_network(), []

    def compute_loss() -> Tensor:
        loss = loss_of(network)()
        calls.append(network[1].running_mean.clone())
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return loss

    with pytest.raises(RuntimeError, match="out of memory"):
        PerturbedDescent(radius=0.5)(network, SGD(network.parameters(), lr=0.1), compute_loss)
    assert not torch.equal(calls[0], calls[1])
    assert torch.equal(network[1].running_mean, calls[0])


def test_autocast_around_a_step_is_as_good_as_inside_the_loss() -> None:
    gradients = []
    for around in (False, True):
        network = small_network()
        optimizer, loss = SGD(network.parameters(), lr=0.1), loss_of(network)
        lower = torch.autocast("cpu", torch.bfloat16)
        with lower if around else nullcontext():
            for _ in range(2):  # the second step must not see the weights of the first
                PerturbedDescent(radius=0.5)(network, optimizer, loss if around else lower(loss))
        gradients.append([weight.grad for weight in network.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_micro_batches_may_be_summed_inside_the_loss_and_older_gradients_are_dropped() -> None:
    inputs, results = torch.arange(8.0).reshape(4, 2), []
    for micro in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        model(inputs).sum().backward()

        def compute_loss(model: nn.Module = model, micro: bool = micro) -> Tensor:
            if not micro:
                return model(inputs).square().mean()  # type: ignore[no-any-return]
            first, second = (model(part).square().mean() / 2 for part in inputs.split(2))
            first.backward()
            return second  # type: ignore[no-any-return]

        PerturbedDescent(radius=0.1)(model, SGD(model.parameters(), lr=0.01), compute_loss)
        results.append(model.weight.detach())
    torch.testing.assert_close(*results)


def test_an_optimizer_that_needs_a_closure_and_sparse_gradients_are_refused() -> None:
    model = TwoWeights()
    with pytest.raises(TypeError, match="must not be LBFGS"):
        PerturbedDescent(radius=0.1)(model, LBFGS(model.parameters()), model.loss)
    table = nn.Embedding(5, 3, sparse=True)
    before = table.weight.detach().clone()
    with pytest.raises(TypeError, match=r"gradients must be dense.*sparse=True"):
        PerturbedDescent(radius=0.1)(
            table, SGD(table.parameters(), lr=0.1), lambda: table(torch.tensor([1, 2])).square().sum()
        )
    assert torch.equal(table.weight, before)


WRONG_LOSSES: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "nothing": (
        lambda loss: None,
        TypeError,
        "compute_loss must return the loss, a tensor of one number, not NoneType",
    ),
    "a number": (lambda loss: loss.item(), TypeError, "a tensor of one number, not float"),
    "a loss per image": (lambda loss: loss.expand(3), ValueError, r"one number, not of shape \(3,\)"),
    "a detached loss": (lambda loss: loss.detach(), ValueError, r"without a gradient: .* the step calls backward\(\)"),
}


@pytest.mark.parametrize("step", [descend, PerturbedDescent(radius=0.05)])
@pytest.mark.parametrize(("change", "error", "words"), WRONG_LOSSES.values(), ids=WRONG_LOSSES)
def test_what_is_no_loss_is_refused_with_the_reason(
    step: Step, change: Callable[[Tensor], Any], error: type[Exception], words: str
) -> None:
    network = small_network()
    compute_loss = loss_of(network)
    with pytest.raises(error, match=words):
        step(network, SGD(network.parameters(), lr=0.1), lambda: change(compute_loss()))


@pytest.mark.parametrize("step", [descend, PerturbedDescent(radius=0.05)])
def test_a_loss_that_was_computed_before_is_refused_as_a_step_computes_it_itself(step: Any) -> None:
    network = small_network()
    with pytest.raises(TypeError, match="compute_loss must be a function that computes the loss, not Tensor"):
        step(network, SGD(network.parameters(), lr=0.1), loss_of(network)())


def test_a_model_in_the_place_of_the_optimizer_is_refused_with_the_order() -> None:
    network: Any = small_network()
    with pytest.raises(TypeError, match="the order is model, optimizer, compute_loss"):
        PerturbedDescent(radius=0.05)(SGD(network.parameters(), lr=0.1), network, loss_of(network))  # type: ignore[arg-type]


def test_the_optimizer_of_another_model_is_refused_as_it_would_train_nothing() -> None:
    network, other = small_network(), small_network()
    with pytest.raises(RuntimeError, match=r"none of the optimizer's weights a gradient: is it the optimizer of this"):
        PerturbedDescent(radius=0.05)(network, SGD(other.parameters(), lr=0.1), loss_of(network))


def test_dropout_repeats_its_mask_and_randomness_goes_on_as_after_one_pass() -> None:
    weight = nn.Linear(64, 1, bias=False)
    dropout = nn.Dropout(0.5)
    masks = []

    def compute_loss() -> Tensor:
        kept = dropout(torch.ones(64))
        masks.append(kept)
        return weight(kept).sum()

    torch.manual_seed(3)
    PerturbedDescent(radius=0.1)(weight, SGD(weight.parameters(), lr=0.1), compute_loss)
    after = torch.rand(4)
    torch.manual_seed(3)
    once = dropout(torch.ones(64))
    assert 0 < (once == 0).sum() < 64
    assert torch.equal(masks[0], once)
    assert torch.equal(masks[1], once)
    assert torch.equal(after, torch.rand(4))


def test_a_zero_gradient_moves_nothing() -> None:
    model = TwoWeights()
    seen = []

    def compute_loss() -> Tensor:
        seen.append(model.values)
        return model.loss() * 0

    PerturbedDescent(radius=0.5)(model, SGD(model.parameters(), lr=0.1), compute_loss)
    assert seen == [[1, 2], [1, 2]]
    assert model.values == [1, 2]


@pytest.mark.parametrize("size", [1e-15, 1e-21, 1e-25, 1e-38])
def test_a_gradient_whose_squares_underflow_never_moves_further_than_the_radius(size: float) -> None:
    weight = nn.Linear(4, 1, bias=False)
    before = weight.weight.detach().clone()
    moved = []

    def compute_loss() -> Tensor:
        moved.append((weight.weight.detach() - before).norm().item())
        return size * weight.weight.sum()

    PerturbedDescent(radius=0.5)(weight, SGD(weight.parameters(), lr=0.1), compute_loss)
    assert moved[1] <= 0.5 * (1 + 1e-5)
    assert weight.weight.isfinite().all()


def test_weights_without_a_gradient_are_left_alone() -> None:
    model = TwoWeights()
    model.unused = nn.Parameter(torch.tensor(0.1))
    model.frozen = nn.Parameter(torch.tensor(0.2), requires_grad=False)
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    PerturbedDescent(radius=0.5)(model, optimizer, model.loss)
    assert model.unused.item() == torch.tensor(0.1).item()
    assert model.frozen.item() == torch.tensor(0.2).item()
    assert model.unused.grad is None
    # The unused weights take no part in the norm: as by hand, with weight decay 0.5 · θ.
    assert model.values == pytest.approx([1 - 0.39 - 0.05, 2 - 0.48 - 0.1])


def test_the_norm_spans_all_groups_of_the_optimizer() -> None:
    model = TwoWeights()
    optimizer = SGD([{"params": [model.first], "lr": 0.1}, {"params": [model.second], "lr": 0.2}])
    PerturbedDescent(radius=0.5)(model, optimizer, model.loss)
    assert model.values == pytest.approx([1 - 0.39, 2 - 2 * 0.48])


@pytest.mark.parametrize("radius", [-0.1, float("nan"), float("inf")])
def test_a_radius_that_is_negative_or_not_finite_is_refused(radius: float) -> None:
    with pytest.raises(ValueError, match="radius"):
        PerturbedDescent(radius=radius)


def test_a_relative_radius_is_a_part_of_the_norm_of_the_weights_that_move() -> None:
    model = TwoWeights()
    model.frozen = nn.Parameter(torch.tensor(100.0), requires_grad=False)
    PerturbedDescent(radius_relative=0.2)(model, SGD(model.parameters(), lr=0.1), model.loss)
    # δ = 0.2 · √5 · (3, 4)/5; the gradient at (1 + δ₁, 2 + δ₂) is (3 + 3δ₁, 4 + 2δ₂).
    length = 0.2 * 5**0.5
    assert model.values == pytest.approx([1 - 0.1 * (3 + 3 * 0.6 * length), 2 - 0.1 * (4 + 2 * 0.8 * length)])


def test_a_relative_radius_means_the_same_for_a_network_of_another_scale() -> None:
    moves = []
    for scale in (1.0, 1000.0):  # the loss of the larger one is stretched: f(θ / scale)
        weight = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64) * scale)
        seen: list[Tensor] = []

        def compute_loss(weight: nn.Parameter = weight, scale: float = scale, seen: list[Tensor] = seen) -> Tensor:
            seen.append(weight.detach() / scale)
            return (weight / scale).square().sum()

        holder = nn.ParameterList([weight])
        PerturbedDescent(radius_relative=0.1)(holder, SGD([weight], lr=0.0), compute_loss)
        moves.append((seen[1] - seen[0]).tolist())
    assert moves[0] == pytest.approx([0.1 * 3, 0.1 * 4])
    assert moves[1] == pytest.approx(moves[0])


def test_the_radius_is_either_absolute_or_relative() -> None:
    assert PerturbedDescent() == PerturbedDescent(0.05) == PerturbedDescent(radius=0.05)
    assert PerturbedDescent(radius_relative=0.1).radius is None
    with pytest.raises(ValueError, match=r"radius = 0\.1, radius_relative = 0\.2: give one of the two"):
        PerturbedDescent(radius=0.1, radius_relative=0.2)
    with pytest.raises(ValueError, match=r"radius = 0\.05, radius_relative = 0\.1: give one of the two"):
        replace(PerturbedDescent(), radius_relative=0.1)
    with pytest.raises(ValueError, match=r"radius = None, radius_relative = None: give one of the two"):
        PerturbedDescent(radius=None)
    for wrong in ({"radius_relative": -0.1}, {"radius_relative": float("nan")}):
        with pytest.raises(ValueError, match="radius_relative"):
            PerturbedDescent(**wrong)
