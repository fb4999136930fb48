"""Gradients of a linear model, worked out by hand: F = ½ mean (w·x − y)², ∇F = mean (w·x − y) x."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harmofl.analysis.drift_terms import (
    bound,
    gradient_distances,
    site_gradient,
)
from harmofl.analysis.landscape import landscape
from harmofl.analysis.measured_terms import read_terms
from harmofl.models.catalogue import densenet_small
from harmofl.models.network import build_network
from harmofl.runs.folder import RunFolder
from harmofl.states import snapshot
from runs import SITES, equal, gradients_of, records, train


def model() -> nn.Linear:
    network = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 2.0]]))
    return network


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs[:, 0] - targets).square().mean()


# Residuals 1, 2 and −3, so gradients (1, 0), (0, 2) and (−3, −3).
BATCHES = [
    (torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.0, 0.0])),
    (torch.tensor([[1.0, 1.0]]), torch.tensor([6.0])),
]


def test_gradient_is_the_mean_over_images() -> None:
    found = site_gradient(model(), BATCHES, half_square)
    assert found.mean.tolist() == pytest.approx([-2 / 3, -1 / 3])
    assert found.squared_norm == pytest.approx(5 / 9)


def test_variance_is_the_mean_squared_distance_of_the_batches_gradients() -> None:
    """Batches (½, 1) and (−3, −3), weights ⅔ and ⅓, mean (−⅔, −⅓): ⅔ (49 + 64)/36 ... by E‖g‖² − ‖Eg‖²."""
    found = site_gradient(model(), BATCHES, half_square)
    assert found.variance == pytest.approx(2 / 3 * 1.25 + 1 / 3 * 18 - 5 / 9)


def test_loss_is_the_mean_over_images() -> None:
    assert site_gradient(model(), BATCHES, half_square).loss == pytest.approx((0.5 + 2 + 4.5) / 3)


def test_one_batch_has_no_variance() -> None:
    assert site_gradient(model(), BATCHES[:1], half_square).variance == 0.0


def test_distances_between_sites() -> None:
    sites = [site_gradient(model(), [batch], half_square) for batch in BATCHES]  # (½, 1) and (−3, −3)
    distance = (3.5**2 + 4.0**2) ** 0.5
    assert gradient_distances(sites).flatten().tolist() == pytest.approx([0.0, distance, distance, 0.0])


def test_terms_of_the_bound() -> None:
    """K = 5 steps of 0.2: Kη = 1, so 4 · mean(1, 3), 4 · (2 · ½)² and 2 · 5 · 0.04 · 10."""
    terms = bound([1.0, 3.0], variance=10.0, epsilon=2.0, num_steps=5, step_size=0.2)
    assert terms == {
        "gradient": pytest.approx(8.0),
        "dissimilarity": pytest.approx(4.0),
        "noise": pytest.approx(4.0),
    }


def test_a_network_is_left_as_it_was() -> None:
    network = build_network(densenet_small, 3, 2, 8, "batch", seed=0).train()
    before = snapshot(network)
    site_gradient(network, [(torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 0, 1]))], nn.functional.cross_entropy)
    assert equal(before, snapshot(network))
    assert network.training
    assert all(weight.grad is None for weight in network.parameters())


# ---- of finished runs ----

TINY: dict[str, Any] = {"points": 9, "local_epochs": 2, "images": 8, "directions": 2, "growths": 0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedbn"):
        train(folder / method, method=method, rounds=3, data__sites=SITES[:2])
    return {path.name: path for path in folder.iterdir()}


def test_the_terms_of_a_run_stand_beside_its_recorded_drift(runs: dict[str, Path], tmp_path: Path) -> None:
    landscape([runs["fedbn"], runs["fedavg"]], tmp_path, **TINY)
    found = read_terms(tmp_path)
    assert [(each.run, each.label) for each in found] == [
        (os.path.relpath(runs[name], tmp_path), title) for name, title in (("fedbn", "FedBN"), ("fedavg", "FedAvg"))
    ]
    assert found[1].curves[SITES[1]][2] == next(
        record["drift"]
        for record in records(runs["fedavg"])
        if (record["round"], record["site"], record["phase"]) == (2, SITES[1], "train")
    )
    gradients = gradients_of(runs["fedavg"])
    terms = found[1].terms
    assert terms.round == RunFolder(runs["fedavg"]).read_summary()["best_round"]
    assert terms.squared_gradients == {name: each.squared_norm for name, each in gradients.items()}
    assert terms.epsilon == pytest.approx(float((gradients[SITES[0]].mean - gradients[SITES[1]].mean).norm()))
    assert terms.bound["gradient"] > 0
    # The constants fit the model itself, so that the second line is never below the first.
    assert terms.second_line["in general"] >= sum(terms.bound.values()) * (1 - 1e-6)
    assert terms.second_line["if convex"] >= sum(terms.bound.values()) * (1 - 1e-6)
    assert terms.constants["beta"] > 0
