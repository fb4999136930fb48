"""Each method states when it is FedAvg; here it trains in that limit, and beside it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from harmofl import train
from harmofl.runs.folder import RunFolder
from harmofl.states import State, select_prefix

RESET = {"training.optimizer_state": "reset"}
ADAM = {"training.optimizer": "adam", "training.learning_rate": 1e-3}

FinalWeights = Callable[..., State]


@pytest.fixture(scope="module")
def final_weights(tmp_path_factory: pytest.TempPathFactory) -> FinalWeights:
    """The global network after the last round of a tiny run."""

    @cache
    def run(method: str, settings: tuple[tuple[str, Any], ...]) -> State:
        out: Path = tmp_path_factory.mktemp(method) / "run"
        tiny = {"data.size": 16, "training.rounds": 2, "training.batch_size": 4, "model.features": 4}
        train("histology", method, preset="smoke", workers=1, device="cpu", out=out, settings=tiny | dict(settings))
        tensors, _ = RunFolder(out).checkpoints.load(2)
        return select_prefix("state", tensors)

    return lambda method, **settings: run(method, tuple(sorted(settings.items())))


def largest_difference(first: State, second: State) -> float:
    assert first.keys() == second.keys()
    return max((first[name].double() - second[name].double()).abs().max().item() for name in first)


@pytest.mark.parametrize(
    ("method", "limit", "others"),
    [
        ("fedprox", {"method.mu": 0}, {}),
        ("moon", {"method.mu": 0}, {}),
        ("harmofl", {"method.band": "none", "method.radius": 0}, {}),
        ("sitealign", {"method.band": "none"}, {}),
        ("sitealign", {"method.max_gain": 1.0}, {}),
        ("fixbn", {"method.exploration": 1.0}, {}),
        ("fedwon", {}, {"model.norm": "weight-standardization"}),
        ("momentum-sam", {"method.radius": 0}, {}),
        ("fedlesam", {"method.radius": 0}, {}),
        ("fedasam", {"method.adaptive_radius": 0}, {}),
        ("fedavgm", {"method.server_momentum": 0.0}, {}),
    ],
)
def test_a_method_in_its_limit_is_fedavg_to_the_bit(
    final_weights: FinalWeights, method: str, limit: dict[str, Any], others: dict[str, Any]
) -> None:
    weights, of_fedavg = final_weights(method, **limit), final_weights("fedavg", **others)
    assert weights.keys() == of_fedavg.keys()
    assert all(torch.equal(weights[name], of_fedavg[name]) for name in weights)


@pytest.mark.parametrize(
    ("method", "limit", "others"),
    [
        # Every site of the phantom has as many images, so it makes as many steps.
        ("fednova", {}, RESET),
        ("fednova", ADAM, ADAM),
        ("fedadam", {"method.beta1": 0, "method.tau": 1e6, "federation.server_learning_rate": 1e6}, {}),
    ],
)
def test_a_server_rule_in_its_limit_is_fedavg_up_to_rounding(
    final_weights: FinalWeights, method: str, limit: dict[str, Any], others: dict[str, Any]
) -> None:
    assert largest_difference(final_weights(method, **limit), final_weights("fedavg", **others)) < 1e-5


@pytest.mark.parametrize(
    ("method", "settings", "others"),
    [
        ("fedprox", {"method.mu": 1}, {}),
        ("moon", {}, {}),
        ("harmofl", {"method.band": "none"}, {}),
        ("harmofl", {"method.radius": 0}, {}),
        ("momentum-sam", {}, {}),
        ("fedlesam", {"method.radius": 0.05}, {}),
        ("fedasam", {}, {}),
        ("fedavg", RESET, {}),
    ],
)
def test_a_method_away_from_its_limit_is_not_fedavg(
    final_weights: FinalWeights, method: str, settings: dict[str, Any], others: dict[str, Any]
) -> None:
    assert largest_difference(final_weights(method, **settings), final_weights("fedavg", **others)) > 1e-4
