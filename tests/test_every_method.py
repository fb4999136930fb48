"""Every method on every task: it trains, records and leaves a model that can be used."""

import math
from pathlib import Path

import pytest
import torch

import harmofl
from harmofl import registry
from harmofl.settings import resolve
from runs import records, tiny

PAPER_TASKS = ("histology", "nuclei", "prostate")

OWN_PARTS = ("ditto", "fedbn", "fedper", "fedrdn", "freshbn", "local", "silobn", "sitealign")
FEWER_STEPS = {"histology": {}, "nuclei": {}, "prostate": {"training.batch_size": 32}}
"""A case of the synthetic prostates is eight images: larger batches spare steps."""
SUMMARY = {"task", "method", "seed", "metric_name", "best_round", "test", "versions", "seconds"}


@pytest.mark.slow
@pytest.mark.parametrize("task", PAPER_TASKS)
@pytest.mark.parametrize("method", registry.methods.names())
def test_every_method_trains_on_every_task(method: str, task: str, tmp_path: Path) -> None:
    sites = some_sites(method, task)
    settings = tiny(task, data__sites=list(sites), data__min_images_for_amplitude=2)  # these sites have hardly more
    summary = harmofl.train(task, method, preset="smoke", settings=settings | FEWER_STEPS[task], out=tmp_path / "run")
    data = resolve(task, "fedavg", "smoke", overrides=tiny(task, data__sites=list(sites)))[0].data
    assert registry.tasks.find(task).sites_of(data) == sites

    assert summary.keys() >= SUMMARY
    assert (summary["task"], summary["method"], summary["seed"]) == (task, method, 0)
    scores = [summary["test"][site] for site in sites]
    assert summary["test"].keys() == {*sites, "average", "std"}
    assert summary["test"]["average"] == pytest.approx(sum(scores) / len(scores))
    variance = sum((score - sum(scores) / len(scores)) ** 2 for score in scores) / (len(scores) - 1)
    assert summary["test"]["std"] == pytest.approx(math.sqrt(variance))
    assert all(0 <= score <= 1 for score in scores)

    trainers = registry.tasks.find(task).participants(registry.methods.find(method), data)
    check_records(records(tmp_path / "run"), sites, trainers=trainers, method=method)
    images = registry.tasks.find(task).load_site(sites[0], data).test[sites[0]].load(torch.arange(2)).images
    for site in sites if method in OWN_PARTS else [None]:
        model = harmofl.load_model(tmp_path / "run" / "model", site=site)
        logits = model(images)
        assert logits.shape[:2] == (len(images), 2)
        assert torch.isfinite(logits).all()
        assert not model.training
    if method in OWN_PARTS:
        with pytest.raises(harmofl.UsageError, match=f"one model per site.*{sites[-1]}"):
            harmofl.load_model(tmp_path / "run" / "model")
        with pytest.raises(harmofl.UsageError, match=f"unknown site 'nowhere'.*{sites[-1]}"):
            harmofl.load_model(tmp_path / "run" / "model", site="nowhere")


def some_sites(method: str, task: str) -> tuple[str, ...]:
    """Three sites, or as many as the method's server rule asks for."""
    phantom = registry.tasks.find(task).phantom
    assert phantom
    return phantom.sites[: max(3, registry.methods.find(method).server_rule.fewest_sites)]


def check_records(
    found: list[dict[str, object]], sites: tuple[str, ...], trainers: tuple[str, ...], method: str
) -> None:
    by_place = {
        (r["round"], r["site"], r["phase"]): r for r in found if "selected" not in r and r["phase"] != "measure"
    }
    expected = {(number, site, "train") for number in (1, 2) for site in (*trainers, "server")}
    expected |= {(number, site, phase) for number in (1, 2) for site in sites for phase in ("val", "test")}
    assert by_place.keys() == expected
    for (number, site, phase), record in by_place.items():
        assert math.isfinite(record["loss"])  # type: ignore[arg-type]
        if phase != "train":
            assert 0 <= record["metric"] <= 1  # type: ignore[operator]
        elif site != "server":
            assert record["drift"] > 0  # type: ignore[operator]
            assert record["num_steps"] > 0  # type: ignore[operator]
            travels = method != "local"
            assert (record["bytes_up"] > 0) == travels  # type: ignore[operator]
            assert (record["bytes_down"] > 0) == (travels or number == 1)  # type: ignore[operator]
    assert {r["site"] for r in found if r.get("selected")} == set(sites)
