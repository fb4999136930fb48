"""A server that wants the numbers below the noise of differential privacy: each is told once, whatever it changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hospital import Hospital

from attacks import first_model, wanted
from folders import segmentation_folder
from harmofl import registry
from harmofl.deployment.run_settings import digests, run_digest
from harmofl.deployment.site_policy import Policy
from harmofl.federation.messages import Reply, settings_to_send
from harmofl.settings import Settings, differences, resolve
from harmofl.states import State, snapshot

pytest.importorskip("opacus")
NOISY = {"privacy.site_level": "local", "privacy.site_noise": 5.0}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return segmentation_folder(tmp_path_factory.mktemp("images") / "images", sites=1, patients=12)


@pytest.fixture
def hospital(tmp_path: Path, images: Path) -> Hospital:
    return Hospital(tmp_path, images, Policy(approval="none"))


def private(method: str, **more: Any) -> Settings:
    overrides = {"data.folder": "there", "data.size": 32, "training.rounds": 3, **NOISY, **more}
    settings, _ = resolve("segmentation", method, "smoke", overrides=overrides)
    return settings.with_values("data", channels=3, classes=["0", "255"])


def model_of(settings: Settings) -> State:
    _, method = resolve(file=settings_to_send(settings))
    return snapshot(registry.tasks.find("segmentation").build_model(settings, method).network)


def noisy(reply: Reply) -> dict[str, bytes]:
    assert not reply.error
    return {name: tensor.numpy().tobytes() for name, tensor in (reply.sent | reply.state).items()}


def moved(state: State, by: float) -> State:
    name = next(name for name, tensor in state.items() if tensor.ndim > 1)
    return state | {name: state[name] * (1 + by)}


def test_a_measurement_has_one_noise_however_often_it_is_asked_for(hospital: Hospital) -> None:
    settings = private("harmofl")
    first = noisy(hospital.ask("measure", 0, settings, {}, counted=0))
    assert noisy(hospital.ask("measure", 0, settings, {}, counted=0)) == first  # as after a crash
    model = model_of(settings)
    some = {name: model[name] for name in list(model)[:1]}
    combined = {"harmonizer.amplitude": torch.ones(3, 1, 1)}
    for changed in ({"counted": 1}, {"counted": 0, "state": some}, {"counted": 0, "combined": combined}):
        again = hospital.ask("measure", 0, settings, **{"state": {}, **changed})
        assert "have been measured for this run" in again.error


def test_a_round_has_one_noise_whatever_it_is_started_from(hospital: Hospital) -> None:
    settings = private("fedavg")
    state = first_model(settings)
    first = noisy(hospital.ask("train", 1, settings, state, counted=0))
    assert noisy(hospital.ask("train", 1, settings, state, counted=0)) == first
    near = hospital.ask("train", 1, settings, moved(state, 1e-5), counted=0)
    assert "round 1 has been trained here from another model" in near.error
    other_start = hospital.ask("train", 1, settings, state, counted=1)
    assert "round 1 has been trained here from another model" in other_start.error
    assert noisy(hospital.ask("train", 2, settings, moved(state, 1e-5), counted=1))  # the run goes on


def test_what_a_private_round_goes_on_from_must_be_said(hospital: Hospital) -> None:
    settings = private("fedavg")
    reply = hospital.ask("train", 1, settings, first_model(settings))
    assert "the last round of this site that counted is missing" in reply.error


@pytest.mark.parametrize("counted", [False, True, 0.0, -0.0, -1, "0", [], 10**7])
def test_a_round_that_counted_is_a_whole_number(hospital: Hospital, counted: Any) -> None:
    settings = private("fedavg")
    reply = hospital.ask("train", 1, settings, first_model(settings), counted=counted)
    assert "rounds must be whole numbers" in reply.error


def test_the_quorum_by_which_noise_is_shared_is_approved_and_stays(hospital: Hospital) -> None:
    central = private("fedavg", **{"privacy.site_level": "central"}).with_values("data", sites=["site-0", "A", "B"])
    larger = central.with_values("federation", quorum=1.0)  # a smaller share for each site
    assert digests(central) != digests(larger)
    assert run_digest(central) != run_digest(larger)
    assert differences(central, larger) == ["federation.quorum"]
    state = first_model(central)
    assert not hospital.ask("train", 1, central, state, counted=0).error
    assert "settings of this run have changed" in hospital.ask("train", 1, larger, state, counted=0).error


def test_elsewhere_the_quorum_is_free() -> None:
    plain = wanted()
    assert digests(plain) == digests(plain.with_values("federation", quorum=1.0))
    assert not differences(plain, plain.with_values("federation", quorum=1.0))
