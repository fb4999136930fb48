"""What sites tell of their images before training, and what they do not."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loopback import OPEN, Loopback, looped, make_kits
from typer.testing import CliRunner

from folders import picture, segmentation_folder
from harmofl.analysis.hospital_surveys import surveys_of
from harmofl.cli import app
from harmofl.deployment.audit import audit_log
from harmofl.deployment.coordinator import RunOptions
from harmofl.deployment.kits import ServerKit
from harmofl.deployment.site_policy import Fewest
from harmofl.deployment.surveys import ask_for_surveys
from harmofl.errors import RunError
from harmofl.federation.messages import Reply, decode_reply
from harmofl.settings import resolve

SITES = ["site-0", "site-1", "site-2"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return segmentation_folder(tmp_path / "images", sites=3, patients=8)


def on_network(folder: Path, images: Path, **own: Any) -> tuple[ServerKit, Loopback]:
    server, sites = make_kits(folder, dict.fromkeys(SITES, str(images)), ["segmentation"], **own)
    return server, Loopback(sites)


def options(**more: Any) -> RunOptions:
    return RunOptions("segmentation", "fedavg", "smoke", given={f"data.{name}": value for name, value in more.items()})


def ask(server: ServerKit, loopback: Loopback, **more: Any) -> dict[str, Any]:
    with looped({}) as other:
        other.participants = loopback.participants
        other.said = loopback.said
        return dict(ask_for_surveys(server, options(**more), wait=1)[1])


def test_the_network_changes_no_number(tmp_path: Path, images: Path) -> None:
    server, loopback = on_network(tmp_path, images)
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": str(images)})
    here = surveys_of(settings.with_values("data", sites=SITES, classes=["0", "255"], channels=3, cache=str(tmp_path)))
    assert ask(server, loopback) == here
    noted = [json.loads(line)["asked"] for line in audit_log(server.folder).read_text().splitlines()]
    assert noted == ["deploy compare, or plan", *["describe"] * 3, *["survey"] * 3]
    said = b"".join(loopback.said)
    assert not any(word in said for word in (b"p0-", b".png", b"images/", str(tmp_path).encode()))


def test_synthetic_sites_are_compared_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["BIDMC", "I2CVB"]
    server, sites = make_kits(tmp_path, dict.fromkeys(names, "synthetic"), ["prostate"])
    arguments = ["deploy", "compare", "--kit", str(server.folder), "--task", "prostate", "--preset", "smoke", "--quiet"]
    with looped(sites):
        printed = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
        as_json = CliRunner().invoke(app, [*arguments, "--json"])
    assert printed.exit_code == 0, printed.output
    assert "Let each hospital estimate its own batch norm statistics." in printed.output
    assert "harmofl deploy run --task prostate --method freshbn" in (tmp_path / "out" / "compare.html").read_text()
    assert json.loads(as_json.output) == json.loads((tmp_path / "out" / "compare.json").read_text())


def test_a_hospital_may_tell_nothing(tmp_path: Path, images: Path, caplog: pytest.LogCaptureFixture) -> None:
    server, loopback = on_network(tmp_path, images, surveys=False)
    with pytest.raises(RunError, match=r"site-0: this hospital tells nothing of its images before training"):
        ask(server, loopback)
    open_kit = on_network(tmp_path / "open", images)[1].participants["site-1"].kit
    loopback.participants["site-1"].kit = open_kit
    assert list(ask(server, loopback)) == ["site-1"]
    assert "without some sites: site-0" in caplog.text


def test_a_hospital_hides_what_few_images_could_give_away(tmp_path: Path, images: Path) -> None:
    server, loopback = on_network(tmp_path, images, min_images_for_amplitude=50)
    surveys = ask(server, loopback, min_images_for_amplitude=1)
    assert {survey.hidden for survey in surveys.values()} == {"fewer than 50 training images"}
    assert not any(survey.histogram or survey.halves or survey.size for survey in surveys.values())


def test_a_hospital_tells_nothing_of_fewer_patients_than_a_run_may_use(tmp_path: Path, images: Path) -> None:
    policy = OPEN.model_copy(update={"fewest_patients": Fewest(train=6, val=1, test=1)})  # of eight, five to train on
    server, loopback = on_network(tmp_path, images, policy=policy)
    with pytest.raises(RunError, match="too few are used here: patients in train 5 of 6"):
        ask(server, loopback)
    few = segmentation_folder(tmp_path / "few", sites=3, patients=4, images=5)
    server, loopback = on_network(tmp_path / "divided by image", few, policy=policy)
    with pytest.raises(RunError, match="too few are used here: patients in train 4 of 6"):
        ask(server, loopback, split_by="image")  # of 20 images, 13 to train on


def test_windows_and_other_choices_of_the_same_images_are_refused(tmp_path: Path, images: Path) -> None:
    server, loopback = on_network(tmp_path, images)
    with pytest.raises(RunError, match="no spectrum is shared of images in this window"):
        ask(server, loopback, intensity=[250.0, 255.0])
    assert len(ask(server, loopback)) == 3
    assert len(ask(server, loopback, size=24)) == 3  # the same images, seen otherwise
    with pytest.raises(RunError, match="averages of other images have been told before"):
        ask(server, loopback, seed=7)


def test_averages_of_changed_images_are_not_told(tmp_path: Path, images: Path) -> None:
    server, loopback = on_network(tmp_path, images)
    ask(server, loopback)
    first = next((images / "site-0").glob("p0-0.png"))
    from folders import blob

    picture(first, blob(40, 12345)[0])
    assert list(ask(server, loopback)) == ["site-1", "site-2"]


def test_what_is_not_a_survey_is_left_out(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, loopback = on_network(tmp_path, images)
    kind = type(loopback.participants["site-0"])
    honest = kind.answer

    def lie(self: Any, data: bytes) -> bytes:
        from harmofl.federation.messages import encode

        reply = decode_reply(honest(self, data))
        false: Reply = replace(reply, description={**reply.description, "histogram": [2.0]})
        return encode(false if self.kit.name == "site-0" and "halves" in reply.description else reply)

    monkeypatch.setattr(kind, "answer", lie)
    assert list(ask(server, loopback)) == ["site-1", "site-2"]


def test_a_plan_over_the_network_is_that_of_one_process(tmp_path: Path) -> None:
    names = ["BIDMC", "I2CVB"]
    server, sites = make_kits(tmp_path, dict.fromkeys(names, "synthetic"), ["prostate"], min_images_for_amplitude=6)
    arguments = ["--task", "prostate", "--preset", "smoke", "--set", "data.dimensions=3", "--quiet"]
    arguments += ["--set", "data.min_images_for_amplitude=6"]
    with looped(sites):
        there = CliRunner().invoke(
            app, ["deploy", "plan", "--kit", str(server.folder), *arguments, "--out", str(tmp_path / "there")]
        )
    assert there.exit_code == 0, there.output
    assert "harmofl deploy run --config plan.toml" in there.output
    named = ["--set", f"data.sites={json.dumps(names)}", "--out", str(tmp_path / "here")]
    CliRunner().invoke(app, ["plan", *arguments, *named], catch_exceptions=False)
    here, over = (tomllib.loads((tmp_path / each / "plan.toml").read_text()) for each in ("here", "there"))
    assert here["data"].pop("sites") == names
    assert here == over
