import math

import pytest
import torch
from torch import Tensor, nn

from harmofl.methods.layers import Harmonizer
from harmofl.methods.model import Model
from harmofl.methods.penalties import Batch, ModelContrast, Proximity, contrast, squared_distance
from harmofl.methods.pieces import LocalRound, Memory

ALONG, ACROSS = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])


class Directions(nn.Module):
    """A network whose representation is its only weight."""

    def __init__(self, direction: Tensor) -> None:
        super().__init__()
        self.direction = nn.Parameter(direction.clone())
        self.seen: list[Tensor] = []

    def representation(self, inputs: Tensor) -> Tensor:
        self.seen.append(inputs)
        return self.direction


def local_round(weights: tuple[Tensor, ...] = (), global_model: Tensor = ALONG, **kept: Tensor) -> LocalRound:
    model = Model(Harmonizer(), Directions(global_model))  # type: ignore[arg-type]
    return LocalRound(1, model, weights, learning_rate=0.1, memory=Memory(kept))


def batch(weights: tuple[Tensor, ...] = (), representation: Tensor = ALONG) -> Batch:
    return Batch(weights, torch.zeros(len(representation), 1, 1, 1), representation)


def test_proximity_is_half_mu_times_the_squared_distance_over_all_weights() -> None:
    first = torch.tensor([[1.0, 2.0]], requires_grad=True)
    second = torch.tensor([5.0], requires_grad=True)
    term = Proximity(mu=0.1).start(local_round((torch.tensor([[0.0, 4.0]]), torch.tensor([2.0]))))
    assert term is not None
    value = term(batch((first, second)))  # differences 1, -2, 3: squares sum to 14
    value.backward()
    assert value.item() == pytest.approx(0.1 / 2 * 14)
    assert first.grad is not None
    assert second.grad is not None
    assert first.grad.flatten().tolist() == pytest.approx([0.1, -0.2])
    assert second.grad.tolist() == pytest.approx([0.3])


def test_proximity_at_zero_distance_is_zero_with_a_zero_gradient() -> None:
    weight = torch.tensor([0.1, 0.2], requires_grad=True)
    term = Proximity(mu=0.1).start(local_round((weight.detach().clone(),)))
    assert term is not None
    value = term(batch((weight,)))
    value.backward()
    assert value.item() == 0
    assert weight.grad is not None
    assert weight.grad.tolist() == [0, 0]


def test_squared_distance_spans_all_tensors() -> None:
    distance = squared_distance([torch.ones(2, 2), torch.tensor(3.0)], [torch.zeros(2, 2), torch.tensor(1.0)])
    assert distance.item() == pytest.approx(4 + 4)


@pytest.mark.parametrize("penalty", [Proximity(mu=0), ModelContrast(mu=0)])
def test_a_penalty_at_mu_zero_has_no_term(penalty: Proximity | ModelContrast) -> None:
    assert penalty.start(local_round()) is None


def test_contrast_is_log_two_with_no_gradient_where_both_models_agree() -> None:
    representation = torch.tensor([[0.3, 0.4], [1.0, -2.0]], requires_grad=True)
    other = torch.tensor([[1.0, 2.0], [0.5, 0.0]])
    value = contrast(representation, other, other, temperature=0.5)
    value.backward()
    assert value.item() == pytest.approx(math.log(2))
    assert representation.grad is not None
    assert representation.grad.abs().max().item() < 1e-7


@pytest.mark.parametrize(
    ("positive", "negative", "temperature", "expected"),
    [
        (ALONG, ACROSS, 0.5, math.log(1 + math.exp(-2))),
        (ACROSS, ALONG, 0.5, math.log(1 + math.exp(2))),
        (ALONG, -ALONG, 0.5, math.log(1 + math.exp(-4))),
        (ALONG, ACROSS, 2.0, math.log(1 + math.exp(-0.5))),
        (5 * ALONG, ACROSS / 7, 0.5, math.log(1 + math.exp(-2))),  # only directions count
    ],
)
def test_contrast_of_vectors_at_right_angles(
    positive: Tensor, negative: Tensor, temperature: float, expected: float
) -> None:
    assert contrast(ALONG, positive, negative, temperature).item() == pytest.approx(expected, rel=1e-5)


def test_contrast_is_averaged_over_the_batch() -> None:
    both = torch.cat([ALONG, ACROSS])
    value = contrast(both, ALONG.expand(2, 2), ACROSS.expand(2, 2), temperature=0.5)
    assert value.item() == pytest.approx((math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))) / 2)


def test_model_contrast_draws_to_the_global_model_and_away_from_the_previous_one() -> None:
    term = ModelContrast(mu=3, temperature=0.5).start(local_round(global_model=ALONG, direction=ACROSS))
    assert term is not None
    representation = torch.tensor([[1.0, 1.0]], requires_grad=True)
    value = term(batch(representation=representation))
    value.backward()
    assert value.item() == pytest.approx(3 * math.log(2))
    assert representation.grad is not None
    assert representation.grad[0, 0] < 0 < representation.grad[0, 1]


def test_model_contrast_compares_with_copies_that_training_does_not_change() -> None:
    local = local_round(global_model=ALONG, direction=ACROSS)
    term = ModelContrast(mu=1, temperature=0.5).start(local)
    assert term is not None
    before = term(batch()).item()
    with torch.no_grad():
        next(local.model.network.parameters()).copy_(-ALONG)
    assert term(batch()).item() == before == pytest.approx(math.log(1 + math.exp(-2)))
    assert not local.model.network.seen  # type: ignore[attr-defined]


def test_without_a_previous_model_the_global_one_stands_for_it() -> None:
    term = ModelContrast(mu=1).start(local_round(global_model=ACROSS))
    assert term is not None
    assert term(batch()).item() == pytest.approx(math.log(2))


def test_model_contrast_keeps_the_trained_model_for_the_next_round() -> None:
    local = local_round(global_model=ACROSS, direction=ALONG)
    ModelContrast().finish(local)
    assert local.memory.kept["direction"].tolist() == ACROSS.tolist()
    assert local.memory.sent == {}
    Proximity().finish(plain := local_round())
    assert plain.memory.kept == {}


@pytest.mark.parametrize("mu", [-1.0, float("inf"), float("nan")])
def test_a_mu_that_is_negative_or_not_finite_is_refused(mu: float) -> None:
    for penalty in (Proximity, ModelContrast):
        with pytest.raises(ValueError, match="mu"):
            penalty(mu=mu)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature"):
        ModelContrast(temperature=0)
