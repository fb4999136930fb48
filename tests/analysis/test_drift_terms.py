"""Gradients of a linear model, worked out by hand: F = ½ mean (w·x − y)², ∇F = mean (w·x − y) x."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harmofl.analysis.drift_terms import (
    at_round,
    bound,
    gradient_distances,
    measure_gradients,
    site_gradient,
    terms_at,
    terms_in,
)
from harmofl.analysis.landscape import landscape
from harmofl.analysis.measured_terms import FILE, RunTerms, read_terms
from harmofl.analysis.subjects import WorkDone, open_runs
from harmofl.data.folder import silent
from harmofl.devices import threads
from harmofl.federation.records import RunFolder
from harmofl.models.network import build_network
from harmofl.states import snapshot
from runs import SITES, equal, records, train


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
    network = build_network("densenet-small", 3, 2, 8, "batch", seed=0).train()
    before = snapshot(network)
    site_gradient(network, [(torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 0, 1]))], nn.functional.cross_entropy)
    assert equal(before, snapshot(network))
    assert network.training
    assert all(weight.grad is None for weight in network.parameters())


# ---- of finished runs ----

TINY: dict[str, Any] = {"points": 5, "local_epochs": 2, "images": 8, "directions": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedbn", "harmofl"):
        train(folder / method, method=method, rounds=3, data__sites=SITES[:2])
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "harmofl"])
def test_the_models_of_a_checkpoint_are_those_of_its_round(runs: dict[str, Path], method: str) -> None:
    """At the selected round they are, to the bit, the models that the run wrote, also where sites keep a part."""
    (subject,) = open_runs([runs[method]], "cpu")
    folder = RunFolder(runs[method])
    again = at_round(subject, folder, folder.read_summary()["best_round"])
    for site in subject.sites:
        assert equal(snapshot(again.models[site]), snapshot(subject.models[site]))
    others = {1, 2, 3} & set(folder.checkpoints.versions()) - {folder.read_summary()["best_round"]}
    other = at_round(subject, folder, max(others))
    assert not equal(snapshot(other.models[SITES[0]]), snapshot(subject.models[SITES[0]]))


def measured(run: Path, out: Path, **options: Any) -> RunTerms:
    """What a small look at a run's landscape leaves in its file."""
    landscape([run], out, **(TINY | options))
    (found,) = read_terms(out) or []
    return found


def test_terms_are_measured_at_the_selected_and_the_last_round(runs: dict[str, Path], tmp_path: Path) -> None:
    summary = runs["fedavg"] / "summary.json"
    best = json.loads(summary.read_text())["best_round"]
    found = measured(runs["fedavg"], tmp_path)
    rounds = [(best, "selected"), (3, "last")] if best != 3 else [(3, "selected and last")]
    assert [(terms.round, terms.chosen) for terms in found.measured] == rounds
    assert found.curves[SITES[1]][2] == next(
        record["drift"]
        for record in records(runs["fedavg"])
        if (record["round"], record["site"], record["phase"]) == (2, SITES[1], "train")
    )
    gradients = measure_gradients(runs["fedavg"])
    assert found.measured[0].squared_gradients == {name: each.squared_norm for name, each in gradients.items()}
    assert found.measured[0].epsilon == pytest.approx(
        float((gradients[SITES[0]].mean - gradients[SITES[1]].mean).norm())
    )


def test_at_one_model_both_ways_of_measuring_find_the_same(runs: dict[str, Path], tmp_path: Path) -> None:
    """The selected round called another one: its terms come from the landscape, the last ones from the checkpoint."""
    shutil.copytree(runs["fedbn"], tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    (subject,) = open_runs([folder.path], "cpu")
    best = folder.read_summary()["best_round"]
    found = landscape([folder.path], tmp_path, **TINY)
    with threads(1):
        again = at_round(subject, folder, best)
        terms = terms_at(again, subject.load_sites(), best, "selected", 0, WorkDone("drift", 2, silent))
    assert terms == terms_in(found, 0, best)


def test_work_at_the_last_round_is_watched(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["fedavg"], tmp_path / "run")
    change_summary(tmp_path / "run", best_round=1)
    landscape([tmp_path / "run"], tmp_path, **TINY)
    (tmp_path / FILE).unlink()
    seen: list[dict[str, Any]] = []
    landscape([tmp_path / "run"], tmp_path, **TINY, watch=seen.append)  # its planes are kept
    assert [(record["done"], record["total"], record["site"]) for record in seen] == [
        (1, 2, SITES[0]),
        (2, 2, SITES[1]),
    ]


def test_without_checkpoints_the_selected_round_is_measured(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["fedavg"], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    change_summary(tmp_path / "run", best_round=1)
    found = measured(tmp_path / "run", tmp_path)
    assert [(terms.round, terms.chosen) for terms in found.measured] == [(1, "selected")]


def test_one_model_that_is_selected_and_last_is_measured_once(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["fedavg"], tmp_path / "run")
    change_summary(tmp_path / "run", best_round=3)
    found = measured(tmp_path / "run", tmp_path)
    assert [terms.chosen for terms in found.measured] == ["selected and last"]


def change_summary(run: Path, **values: object) -> None:
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_is_kept_is_not_measured_again(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured(runs["harmofl"], tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("harmofl.analysis.drift_terms._all_terms", refuse)
    assert measured(runs["harmofl"], tmp_path) == found
    for run, seed in ((runs["fedavg"], 0), (runs["harmofl"], 1)):
        with pytest.raises(AssertionError, match="measured again"):
            measured(run, tmp_path, seed=seed)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(AssertionError, match="measured again"):
        measured(runs["harmofl"], tmp_path)
