"""A run over the network is the run in one process, to the bit; the sites tell what the server cannot see."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback, looped, make_kits

import harmofl
from folders import segmentation_folder
from harmofl.deployment.coordinator import RunOptions, coordinate
from harmofl.deployment.descriptions import join_classes
from harmofl.deployment.kits import ServerKit
from harmofl.errors import RunError, UsageError
from harmofl.events import Event, RoundFinished
from harmofl.federation.messages import Reply, Request
from runs import SITES, differences, records, stop_after_round, tiny, train
from volumes import write_hospitals

THREE = SITES[:3]


def on_network(kit: ServerKit, out: Path, method: str = "fedavg", **more: Any) -> Mapping[str, Any]:
    options = {name: more.pop(name) for name in ("resume", "watch") if name in more}
    wanted = RunOptions("histology", method, "smoke", given=tiny(**more))
    return coordinate(kit, wanted, out, wait=1, **options)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((method, {}) for method in ("fedavg", "fedbn", "moon", "fedadam", "scaffold", "median", "harmofl", "local")),
        ("fedavg", {"model__statistics": "site"}),
        ("fedavg", {"federation__transport": "int8"}),
    ],
)
def test_the_network_changes_no_bit(tmp_path: Path, method: str, settings: dict[str, str]) -> None:
    train(tmp_path / "here", method, data__sites=THREE, **settings)
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(sites):
        on_network(server, tmp_path / "there", method, **settings)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


@pytest.mark.parametrize("level", [{"privacy__site_level": "local"}, {"privacy__image_level": True}])
def test_the_noise_of_hospitals_is_not_the_runs(tmp_path: Path, level: dict[str, Any]) -> None:
    """A server that knows the seed could take noise off again that a simulation draws from it."""
    settings = {"model__norm": "group", "rounds": 1} | level
    simulated = train(tmp_path / "here", data__sites=THREE, **settings)
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(sites):
        summary = on_network(server, tmp_path / "there", **settings)
    assert summary["privacy"] == simulated["privacy"]
    assert not same_weights(tmp_path / "here", tmp_path / "there")
    keys = [file.read_bytes() for file in sorted(tmp_path.glob("sites/**/noise.key"))]
    assert len(set(keys)) == len(THREE)


def test_images_of_folders_at_the_sites_give_the_same_model(tmp_path: Path) -> None:
    data = segmentation_folder(tmp_path / "images", sites=3)
    settings = {"training.rounds": 2, "federation.workers": 1, "data.min_images_for_amplitude": 2}
    harmofl.train("segmentation", "harmofl", data=data, preset="smoke", settings=settings, out=tmp_path / "here")
    names = [f"site-{number}" for number in range(3)]
    server, sites = make_kits(tmp_path, dict.fromkeys(names, str(data)), ["segmentation"], min_images_for_amplitude=2)
    with looped(sites):
        wanted = RunOptions("segmentation", "harmofl", "smoke", given=settings)
        coordinate(server, wanted, tmp_path / "there", wait=1)
    assert same_weights(tmp_path / "here", tmp_path / "there")


def test_volumes_at_the_sites_give_the_same_model(tmp_path: Path) -> None:
    data = write_hospitals(tmp_path / "scans", cases=5)
    given = {"data.dimensions": 3, "data.spacing": [4.0, 3.0, 3.0], "training.rounds": 1, "federation.workers": 1}
    harmofl.train("prostate", "fedavg", data=data, preset="smoke", settings=given, out=tmp_path / "here")
    server, sites = make_kits(tmp_path, dict.fromkeys(["A", "B"], str(data)), ["prostate"])
    with looped(sites):
        coordinate(server, RunOptions("prostate", "fedavg", "smoke", given=given), tmp_path / "there", wait=1)
    assert same_weights(tmp_path / "here", tmp_path / "there")


def same_weights(one: Path, other: Path) -> bool:
    name = "model/model.safetensors"
    return (one / name).read_bytes() == (other / name).read_bytes()


def test_a_hospital_may_be_called_otherwise_in_its_own_folder(tmp_path: Path) -> None:
    folders = {f"H{number}": str(segmentation_folder(tmp_path / f"h{number}", sites=1)) for number in range(2)}
    server, sites = make_kits(tmp_path, folders, ["segmentation"])
    with looped(sites):
        wanted = RunOptions("segmentation", "fedavg", "smoke", given={"training.rounds": 1})
        summary = coordinate(server, wanted, tmp_path / "run", wait=1)
    assert {"H0", "H1"} <= summary["test"].keys()


def test_a_hospital_scores_its_model_on_images_that_it_was_not_trained_on(tmp_path: Path) -> None:
    folders = {f"H{number}": segmentation_folder(tmp_path / f"h{number}", sites=1) for number in range(2)}
    server, sites = make_kits(tmp_path, {name: str(folder) for name, folder in folders.items()}, ["segmentation"])
    with looped(sites) as loopback:
        wanted = RunOptions("segmentation", "fedavg", "smoke", given={"training.rounds": 1})
        summary = coordinate(server, wanted, tmp_path / "run", wait=1)
    (model,) = (sites["H0"].folder / "models").iterdir()
    scores = harmofl.evaluate(model, data=folders["H0"])  # whose folder calls it site-0
    assert {site: found["metric"] for site, found in scores.items()} == {"site-0": summary["test"]["H0"]}
    assert scores["site-0"]["images"] < 10  # of 40 tiles

    print_of_h0 = json.loads((model / "model.json").read_text())["trained_on"]["fingerprints"][0]
    at_the_server = [
        (tmp_path / "run" / name).read_bytes() for name in ("config.toml", "data.json", "model/model.json")
    ]
    travelled = [*loopback.said, *at_the_server]
    assert not any(print_of_h0.encode() in words for words in travelled)

    (folders["H0"] / "site-0" / "p0-0.png").write_bytes((folders["H1"] / "site-0" / "p1-0.png").read_bytes())
    with pytest.raises(UsageError, match="site-0 took part in training, but with other images"):
        harmofl.evaluate(model, data=folders["H0"])


def test_a_run_starts_from_a_model_that_lies_at_the_server(tmp_path: Path) -> None:
    train(tmp_path / "first", rounds=1, seed=7)
    first = str(tmp_path / "first" / "model")
    train(tmp_path / "here", rounds=1, data__sites=THREE, model__initial=first)
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(sites):
        on_network(server, tmp_path / "there", rounds=1, model__initial=first)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


def test_every_hospital_ends_with_the_model(tmp_path: Path) -> None:
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(sites):
        on_network(server, tmp_path / "run", "fedavg", rounds=1)
    ends = [*(tmp_path / "sites").glob("*/models/*/model.safetensors"), tmp_path / "run/model/model.safetensors"]
    assert len(ends) == 4
    assert len({end.read_bytes() for end in ends}) == 1


class Leaves:
    """A site that is not there in some rounds."""

    def __init__(self, loopback: Loopback, site: str, rounds: set[int]) -> None:
        self.loopback, self.site, self.rounds = loopback, site, rounds

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundFinished):
            self.loopback.away = {self.site} if event.round + 1 in self.rounds else set()


def test_a_site_that_was_away_for_a_round_is_named_and_comes_back(tmp_path: Path) -> None:
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(sites) as loopback:
        on_network(server, tmp_path / "run", "fedbn", rounds=3, watch=Leaves(loopback, THREE[1], {2}))
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert sum("not connected" in line for line in lines) == 1
    assert sites[THREE[1]].state("").is_dir()


def test_a_run_is_resumed_with_what_the_sites_had_said(tmp_path: Path) -> None:
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(sites):
        on_network(server, tmp_path / "whole", "harmofl", rounds=3)

    _, others = make_kits(tmp_path / "again", dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(others), pytest.raises(KeyboardInterrupt):
        on_network(server, tmp_path / "cut", "harmofl", rounds=3, watch=stop_after_round(2))
    with looped(others) as loopback:
        on_network(server, tmp_path / "cut", "harmofl", rounds=3, resume=True)
    assert differences(tmp_path / "whole", tmp_path / "cut", stores=False) == []
    assert not any(b"describe" in said for said in loopback.said)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data.folder": "/images"}, "data.folder = '/images'"),
        ({"data.cache": "/cache"}, "data.cache"),
        ({"data.hold_out_site": "hospital-0"}, "data.hold_out_site"),
    ],
)
def test_the_server_names_no_place_at_a_site(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    server, _ = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with pytest.raises(UsageError, match=words):
        coordinate(server, RunOptions("histology", "fedavg", "smoke", given=given), tmp_path / "run")


def test_a_method_that_needs_all_images_in_one_place_is_refused(tmp_path: Path) -> None:
    server, _ = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with pytest.raises(UsageError, match="in one place"):
        coordinate(server, RunOptions("histology", "centralized", "smoke"), tmp_path / "run")


def test_sites_that_cannot_take_part_are_named_with_their_reason(tmp_path: Path) -> None:
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["prostate"])
    with looped(sites), pytest.raises(RunError, match=r"0 of 3 sites can take part \(hospital-0: task 'histology'"):
        on_network(server, tmp_path / "run")


def test_two_runs_do_not_share_a_federation(tmp_path: Path) -> None:
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(sites), server.lock_runs(), pytest.raises(UsageError, match="another"):
        on_network(server, tmp_path / "run")


def test_classes_of_all_sites_are_joined() -> None:
    assert join_classes([["0", "255"], ["0", "1"]]) == ["0", "1"]
    assert join_classes([["0", "1", "2"], ["0", "1"]]) == ["0", "1", "2"]
    assert join_classes([["ill", "well"], ["well", "other"]]) == ["ill", "other", "well"]


class LateAt(Loopback):
    """One site is away while the others measure their images."""

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        self.away = {THREE[1]} if next(iter(requests.values())).kind == "measure" else set()
        yield from super().ask(requests, timeout)


@pytest.mark.parametrize("method", ["fedrdn", "sitealign"])
def test_a_site_that_comes_after_the_measurement_says_why_it_takes_no_part(tmp_path: Path, method: str) -> None:
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(sites) as loopback:
        loopback.__class__ = LateAt
        on_network(server, tmp_path / "run", method, federation__quorum=0.6)
    reasons = {(r["site"], r["error"]) for r in records(tmp_path / "run") if "error" in r and r["phase"] != "measure"}
    assert {site for site, _ in reasons} == {THREE[1]}
    assert all("it was not there when the sites measured their images" in reason for _, reason in reasons)
