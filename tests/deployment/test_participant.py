"""What a hospital accepts from the server, and what it tells it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import make_kits

from folders import segmentation_folder
from harmofl import registry
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.own_images import OwnImages
from harmofl.deployment.participant import Participant
from harmofl.deployment.policy import apply_own_choices
from harmofl.federation.messages import Reply, Request, decode_reply, encode
from harmofl.settings import Settings, resolve
from harmofl.states import snapshot
from runs import SITES, tiny

SITE = SITES[0]
RUN = "0123456789abcdef" * 2


def request(**changes: Any) -> Request:
    settings, _ = resolve("histology", "fedavg", "smoke", overrides=tiny())
    return replace(Request(RUN, "evaluate", 1, settings=settings.model_dump(mode="json")), **changes)


def with_setting(name: str, value: Any) -> Request:
    plain = request()
    section, _, inner = name.partition(".")
    settings = json.loads(json.dumps(plain.settings))
    if inner:
        settings[section][inner] = value
    else:
        settings[section] = value
    return replace(plain, settings=settings)


def ask(tmp_path: Path, message: Request | bytes, data: str = "synthetic", **own: Any) -> Reply:
    task = own.pop("task", "histology")
    _, sites = make_kits(tmp_path, {SITE: data}, [task], **own)
    return decode_reply(Participant(sites[SITE]).answer(message if isinstance(message, bytes) else encode(message)))


@pytest.mark.parametrize("name", ["data.folder", "data.cache", "model.initial"])
def test_a_request_that_names_a_path_is_refused(tmp_path: Path, name: str) -> None:
    assert ask(tmp_path, with_setting(name, "/etc")).error.startswith(f"{name} names a path")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("method", {"name": "os.system"}, "unknown method"),
        ("method", {"name": "fedavg", "step": "__import__('os')"}, "not accepted"),
        ("task", "../secrets", "unknown task"),
        ("training.rounds", "many", "training.rounds"),
        ("training.optimizer", "torch.optim.SGD", "training.optimizer"),
        ("data.code", "print()", "data.code"),
        ("federation.threads", 10_000, "federation.threads"),
        ("training.local_epochs", 10**9, "training.local_epochs"),
        ("data.images", 10**9, "data.images"),
        ("method", ["fedavg"], "method"),
    ],
)
def test_code_and_unknown_names_are_refused(tmp_path: Path, name: str, value: Any, words: str) -> None:
    error = ask(tmp_path, with_setting(name, value)).error
    assert words in error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "../../etc"}, "not the name of a run"),
        ({"run": "A" * 32}, "not the name of a run"),
        ({"kind": "execute"}, "must be one of"),
        ({"round": -1}, "rounds must be whole numbers"),
        ({"round": 1.5}, "rounds must be whole numbers"),
        ({"keep": ("x",)}, "rounds must be whole numbers"),
        ({"settings": ["a"]}, "settings, and what is exchanged, must be tables"),
    ],
)
def test_fields_that_no_server_sends_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in ask(tmp_path, request(**changes)).error


@pytest.mark.parametrize("garbage", [b"", b"x" * 7, b"\x80\x04\x95pickle", b"\xff" * 100])
def test_bytes_that_are_no_message_are_refused(tmp_path: Path, garbage: bytes) -> None:
    assert "not a message" in ask(tmp_path, garbage).error


def test_a_message_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    reply = ask(tmp_path, b"\x00" * (2**20 + 1), largest_message_mb=1)
    assert "at most 1 are accepted" in reply.error


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"not.there": torch.zeros(1)}, "is not expected"),
        ({"features.conv0.weight": torch.zeros(1)}, "does not fit"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, state: dict[str, torch.Tensor], words: str) -> None:
    assert words in ask(tmp_path, request(state=state)).error


def test_a_task_that_the_hospital_does_not_accept_is_refused(tmp_path: Path) -> None:
    assert "not accepted here (nuclei would be)" in ask(tmp_path, request(), task="nuclei").error


def test_the_server_cannot_lower_the_fewest_images_of_a_spectrum(tmp_path: Path) -> None:
    overrides = tiny() | {"method.band": "full", "data.min_images_for_amplitude": 1}
    settings, _ = resolve("histology", "harmofl", "smoke", overrides=overrides)
    message = request(kind="measure", round=0, settings=settings.model_dump(mode="json"))
    assert "amplitude of fewer than 1000" in ask(tmp_path, message, min_images_for_amplitude=1000).error
    assert not ask(tmp_path / "other", message, min_images_for_amplitude=1).error


def test_what_is_wrong_with_images_stays_in_the_hospital(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = segmentation_folder(tmp_path / "patients", sites=1)
    (data / "site-0" / "p1-0.png").write_bytes(b"broken")
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": "there"})
    asked = settings.with_values("data", folder=None).model_dump(mode="json")
    reply = ask(tmp_path, request(kind="describe", settings=asked), data=str(data), task="segmentation")
    assert reply.error == "its images cannot be used; `harmofl deploy check` there says why"
    assert "p1-0.png" in caplog.text


@pytest.mark.parametrize(("end", "what"), [("", "images or their split"), ("-mask", "masks or labels")])
def test_a_run_does_not_go_on_with_other_images_or_masks(tmp_path: Path, end: str, what: str) -> None:
    data = segmentation_folder(tmp_path / "images", sites=1)
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": "there"})
    told = settings.with_values("data", folder=None, channels=3, classes=["0", "255"]).model_dump(mode="json")
    first = ask(tmp_path, request(settings=told), data=str(data), task="segmentation")
    assert "received model" not in first.error
    assert "have changed" not in first.error
    (data / "site-0" / f"p0-0{end}.png").write_bytes((data / "site-0" / f"p1-0{end}.png").read_bytes())
    second = ask(tmp_path, request(settings=told), data=str(data), task="segmentation")
    assert second.error == f"its {what} have changed since this run started"


def test_images_are_opened_once_for_all_rounds_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    usual = OwnImages.of

    def count(kit: SiteKit, settings: Settings) -> OwnImages:
        opened.append(kit.name)
        return usual(kit, settings)

    monkeypatch.setattr(OwnImages, "of", count)
    _, sites = make_kits(tmp_path, {SITE: "synthetic"}, ["histology"])
    participant = Participant(sites[SITE])
    settings, method = resolve("histology", "fedavg", "smoke", overrides=tiny())
    state = snapshot(registry.tasks.find("histology").build_model(settings, method).network)
    for number in (1, 2, 3):
        reply = decode_reply(participant.answer(encode(request(kind="train", round=number, state=state))))
        assert not reply.error
    assert opened == [SITE]
    participant.answer(encode(request(run="f" * 32, kind="train", state=state)))
    assert opened == [SITE, SITE]


def asks_for_spectra(**more: Any) -> Request:
    overrides = tiny() | {"method.band": "full"} | {name.replace("__", "."): value for name, value in more.items()}
    settings, _ = resolve("histology", "harmofl", "smoke", overrides=overrides)
    return request(kind="measure", round=0, settings=settings.model_dump(mode="json"))


def test_a_moving_average_of_spectra_is_not_shared(tmp_path: Path) -> None:
    reply = ask(tmp_path, asks_for_spectra(method__schedule="every-round"))
    assert "only the mean spectrum of all images is shared here" in reply.error


def test_the_difference_of_two_spectra_is_not_given_away(tmp_path: Path) -> None:
    assert not ask(tmp_path, asks_for_spectra()).error
    assert not ask(tmp_path, asks_for_spectra()).error
    assert "a spectrum of other images has been shared before" in ask(tmp_path, asks_for_spectra(data__images=36)).error


@pytest.mark.parametrize(("name", "value"), [("intensity", "range"), ("color", "grey"), ("neighbours", 1)])
def test_the_same_images_seen_otherwise_give_no_second_spectrum(tmp_path: Path, name: str, value: Any) -> None:
    assert not ask(tmp_path, asks_for_spectra()).error
    otherwise = asks_for_spectra(**{f"data__{name}": value})
    assert "shared before, or of the same ones seen otherwise" in ask(tmp_path, otherwise).error


def test_images_in_a_window_give_a_spectrum_only_if_the_hospital_allows_this_window(tmp_path: Path) -> None:
    narrow = asks_for_spectra(data__intensity=[254, 255])
    refused = ask(tmp_path / "none", narrow).error
    assert refused.startswith("data.intensity = [254.0, 255.0]: no spectrum is shared")
    assert "`intensity` in its site.toml" in refused
    assert ask(tmp_path / "other", narrow, intensity=[0.0, 255.0]).error == refused
    assert not ask(tmp_path / "this", narrow, intensity=[254.0, 255.0]).error


def test_a_window_is_free_where_no_spectrum_is_shared(tmp_path: Path) -> None:
    assert not ask(tmp_path, asks_for_spectra(data__intensity=[254, 255], method__band="dc")).error


def test_a_measurement_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    message = asks_for_spectra()
    hostile = replace(message, kind="evaluate", combined={"harmonizer.amplitude": torch.zeros(7)})
    assert "does not fit" in ask(tmp_path, hostile).error


def test_the_server_does_not_choose_whose_images_of_a_folder_are_used(tmp_path: Path) -> None:
    data = segmentation_folder(tmp_path / "images", sites=2)
    _, kits = make_kits(tmp_path, {"site-0": str(data)}, ["segmentation"])
    kit = kits["site-0"]
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": "there"})
    own = OwnImages.of(kit, apply_own_choices(settings, kit))
    hiding = settings.with_values("data", hold_out_site="site-0")
    assert OwnImages.of(kit, apply_own_choices(hiding, kit)).fingerprint == own.fingerprint


def test_a_hospital_notes_what_its_own_images_are_recognized_by_and_of_others_the_names(tmp_path: Path) -> None:
    data = segmentation_folder(tmp_path / "images", sites=1)
    _, kits = make_kits(tmp_path, {"A": str(data)}, ["segmentation"])
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": "there"})
    for sites, noted in ((["B", "A", "C"], ["site-0", "B", "C"]), (["A", "site-0"], ["site-0"]), (None, ["site-0"])):
        images = OwnImages.of(kits["A"], apply_own_choices(settings.with_values("data", sites=sites), kits["A"]))
        assert images.settings.data.sites == noted
        assert images.facts.fingerprints == (images.fingerprint, *[""] * (len(noted) - 1))


def test_a_refusal_stands_in_the_sites_own_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ask(tmp_path, with_setting("data.folder", "/etc"))
    assert "a request was refused: data.folder names a path" in caplog.text
