"""Batch norm statistics that each site estimates on its own images, for any method."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import harmofl
from harmofl import registry
from harmofl.errors import UsageError
from harmofl.methods.adaptations import Adaptation, OwnLayers, SiteStatistics, pool_statistics
from harmofl.methods.catalogue import fedavg
from harmofl.methods.model import Model
from harmofl.runs.folder import RunFolder
from harmofl.runs.model_folder import open_model
from harmofl.settings import resolve
from harmofl.states import select_prefix, snapshot
from runs import SITES, differences, records, tiny, train, weights

OWN = {"model__statistics": "site"}


def test_the_setting_gives_any_method_the_adaptation() -> None:
    for method in ("fedavg", "fedbn", "harmofl"):
        assert isinstance(resolve("histology", method, "smoke", overrides=tiny(**OWN))[1].adapt, SiteStatistics)
    with pytest.raises(UsageError, match=r"model\.statistics = 'site': model\.norm = 'group' keeps no statistics"):
        resolve("histology", "fedavg", "smoke", overrides=tiny(model__norm="group", **OWN))


def test_what_is_trained_and_what_travels_stays_as_it_is(tmp_path: Path) -> None:
    train(tmp_path / "shared", rounds=2)
    train(tmp_path / "own", rounds=2, **OWN)
    states = [RunFolder(tmp_path / name).checkpoints.load(2)[0] for name in ("shared", "own")]
    first, second = (select_prefix("state", state) for state in states)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_site_ends_with_the_common_weights_and_the_statistics_of_its_own_training_images(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=1, **OWN)
    settings, _ = resolve("histology", "fedavg", "smoke", overrides=tiny(**OWN))
    states = {site: weights(tmp_path / "run", site) for site in SITES}
    trainable = {
        f"network.{name}"
        for name, _ in harmofl.load_model(tmp_path / "run" / "model", site=SITES[0]).network.named_parameters()
    }  # type: ignore[union-attr, operator]
    for site in SITES[1:]:
        same = {name for name, tensor in states[site].items() if torch.equal(tensor, states[SITES[0]][name])}
        assert trainable <= same
        assert any("running_mean" in name for name in states[site].keys() - same)
    model = open_model(tmp_path / "run" / "model", SITES[1]).model
    images = registry.tasks.find("histology").load_site(SITES[1], settings.data).train
    before = snapshot(model)
    pool_statistics(model, [batch.images for batch in images.batches(settings.training.batch_size)])
    for name, tensor in snapshot(model).items():
        if "running" in name:
            torch.testing.assert_close(tensor, before[name], rtol=1e-5, atol=1e-6)


def test_freshbn_is_fedavg_with_statistics_of_each_site(tmp_path: Path) -> None:
    train(tmp_path / "setting", "fedavg", rounds=2, **OWN)
    train(tmp_path / "method", "freshbn", rounds=2)
    for site in SITES:
        named, set_ = weights(tmp_path / "method", site), weights(tmp_path / "setting", site)
        assert all(torch.equal(named[name], set_[name]) for name in set_.keys() | named.keys())
    scores = [
        [(r["round"], r["site"], r["phase"], r.get("metric")) for r in records(tmp_path / name)]
        for name in ("setting", "method")
    ]
    assert scores[0] == scores[1]


def test_freshbn_is_refused_where_layers_keep_no_statistics() -> None:
    with pytest.raises(UsageError, match=r"model\.norm.*'group'.*FreshBN|FreshBN.*model\.norm"):
        resolve("histology", "freshbn", "smoke", overrides=tiny(model__norm="group"))


def test_scores_are_those_of_the_adapted_model(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=1, **OWN)
    (selected,) = [r for r in records(tmp_path / "run") if r.get("selected") and r["site"] == SITES[2]]
    again = harmofl.evaluate(tmp_path / "run" / "model", settings={"data.sites": [SITES[2]]})[SITES[2]]
    assert again["metric"] == selected["metric"]
    assert again["loss"] == pytest.approx(selected["loss"], rel=1e-6)


def test_workers_and_resumed_runs_give_the_same_bits(tmp_path: Path) -> None:
    train(tmp_path / "one", rounds=2, **OWN)
    train(tmp_path / "two", rounds=2, federation__workers=2, **OWN)
    assert differences(tmp_path / "one", tmp_path / "two") == []


def test_a_hospital_that_took_no_part_uses_its_own_statistics_too(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", rounds=1, data__hold_out_site="hospital-2", **OWN)
    assert summary["unseen"]["hospital-2"]["note"] == SiteStatistics.note


@dataclass(frozen=True)
class Blind(Adaptation):
    """Scores with a model whose weights are zero."""

    at_every_site = True

    def adapt(self, model: Model, images: Iterable[torch.Tensor]) -> None:
        for weight in model.parameters():
            weight.data.zero_()


def test_training_goes_on_from_what_was_received_whatever_an_adaptation_does(tmp_path: Path) -> None:
    train(tmp_path / "plain", fedavg, rounds=2)
    train(tmp_path / "blind", replace(fedavg, adapt=Blind()), rounds=2)
    plain, blind = (RunFolder(tmp_path / name).checkpoints.load(2)[0] for name in ("plain", "blind"))
    assert all(torch.equal(tensor, blind[name]) for name, tensor in plain.items())


def test_a_common_model_is_adapted_for_a_hospital_that_took_no_part(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", replace(fedavg, adapt=OwnLayers()), rounds=1, data__hold_out_site="hospital-2")
    plain = train(tmp_path / "plain", rounds=1, data__hold_out_site="hospital-2")
    assert summary["unseen"]["hospital-2"]["note"] == OwnLayers.note
    assert summary["unseen"]["hospital-2"]["loss"] != plain["unseen"]["hospital-2"]["loss"]
    assert "note" not in plain["unseen"]["hospital-2"]


def test_pooled_training_is_scored_with_each_sites_own_statistics(tmp_path: Path) -> None:
    train(tmp_path / "run", "centralized", rounds=1, **OWN)
    first, second = (weights(tmp_path / "run", site) for site in SITES[:2])
    assert torch.equal(first["network.body.class_layers.out.weight"], second["network.body.class_layers.out.weight"])
    assert any(not torch.equal(first[name], second[name]) for name in first if "running_mean" in name)
