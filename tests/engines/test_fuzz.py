"""Damaged files and messages: a clear error or the right result, never a traceback, a hang or a heap of memory."""

import json
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fuzzing import damaged_bytes, damaged_json, damaged_tree, try_cases

from harmofl import registry
from harmofl.deployment.kits import SiteKit, SiteSettings
from harmofl.deployment.participant import Participant
from harmofl.deployment.provisioning import make_federation, make_kits
from harmofl.deployment.replies import reply_of
from harmofl.federation.checks import find_problem
from harmofl.federation.messages import Reply, Request, decode_reply, encode, settings_to_send
from harmofl.federation.plausible import Plausible
from harmofl.reporting.words import summarize
from harmofl.runs.checkpoints import newest_checkpoint
from harmofl.runs.finished import read_run
from harmofl.runs.folder import RunFolder
from harmofl.runs.model_folder import open_model
from harmofl.settings import resolve
from harmofl.states import snapshot
from runs import tiny, train

pytestmark = pytest.mark.engines

GIGABYTE = 2**20
"""In the kilobytes of `getrusage`."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    train(out, "fedbn")
    return out


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GIGABYTE


Damage = Callable[[bytes, random.Random], bytes]


def with_damage(folder: Path, name: str, damage: Damage, look: Callable[[Path], object]) -> Callable[..., None]:
    """A case: a file of a folder is damaged, somebody looks, and the file is as before."""
    whole = (folder / name).read_bytes()

    def case(chance: random.Random) -> None:
        (folder / name).write_bytes(damage(whole, chance))
        try:
            look(folder)
        finally:
            (folder / name).write_bytes(whole)

    return case


def look_at_run(folder: Path) -> None:
    finished = read_run(folder)
    assert finished.scores
    assert finished.full_settings
    assert summarize([finished])


def damaged_lines(content: bytes, chance: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    place = chance.randrange(len(lines))
    lines[place] = damaged_json(lines[place], chance).rstrip(b"\n") + b"\n"
    return b"".join(lines)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("summary.json", damaged_json),
        ("data.json", damaged_json),
        ("records.jsonl", damaged_lines),
        ("config.toml", damaged_bytes),
    ],
)
@pytest.mark.parametrize("noted", [True, False], ids=["checksum", "no checksum"])
def test_a_finished_run(run: Path, tmp_path: Path, name: str, damage: Damage, noted: bool) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    if not noted:  # as before version 0.2
        (copy / "checkpoint" / "records.sha256").unlink()
    assert try_cases(100, f"{name} {noted}", with_damage(copy, name, damage, look_at_run)) == 100


def test_a_resumed_run(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    records = (copy / "records.jsonl").read_bytes()
    right = newest_checkpoint(RunFolder(copy))
    assert right is not None

    def look(folder: Path) -> None:
        (folder / "records.jsonl").write_bytes(records)
        found = newest_checkpoint(RunFolder(folder))
        assert found is not None
        assert found.round in (1, 2)
        if found.round == 2:  # accepted: then it is as it was written
            assert all(found.state[name].equal(tensor) for name, tensor in right.state.items())

    case = with_damage(copy, "checkpoint/round-00002.safetensors", damaged_bytes, look)
    assert try_cases(300, "checkpoint", case) == 300
    for name in ("run.json", "run-copy.json"):
        wanted = RunFolder(copy)._identifier()

        def identify(folder: Path, wanted: str = wanted) -> None:
            assert RunFolder(folder)._identifier() == wanted

        assert try_cases(100, name, with_damage(copy, f"checkpoint/{name}", damaged_json, identify)) == 100


@pytest.mark.parametrize(("name", "damage"), [("model.json", damaged_json), ("model.safetensors", damaged_bytes)])
def test_a_model(run: Path, tmp_path: Path, name: str, damage: Damage) -> None:
    copy = Path(shutil.copytree(run / "model" / "sites" / "hospital-0", tmp_path / "model"))
    assert try_cases(150, name, with_damage(copy, name, damage, lambda folder: open_model(folder))) == 150


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kits") / "kits"
    make_kits(make_federation("flower", "localhost", ["hospital-0"]), out, ["histology"], synthetic=True)
    return out / "sites" / "hospital-0"


@pytest.mark.parametrize("name", ["site.toml", "federation.toml"])
def test_a_kit(kit: Path, name: str) -> None:
    def look(folder: Path) -> None:
        opened = SiteKit.open(folder)
        assert isinstance(opened.settings, SiteSettings)
        assert opened.data is None or not opened.data.exists() or opened.cache

    assert try_cases(150, name, with_damage(kit, name, damaged_bytes, look)) == 150


def example_request() -> Request:
    settings, method = resolve("histology", "fedavg", "smoke", overrides=tiny())
    state = snapshot(registry.tasks.find("histology").build_model(settings, method).network)
    return Request("0" * 32, "evaluate", 1, state=state, settings=settings_to_send(settings))


def test_a_request_to_a_site(kit: Path) -> None:
    participant, asked = Participant(SiteKit.open(kit)), example_request()
    whole = encode(asked)

    def case(chance: random.Random) -> None:
        data = damaged_bytes(whole, chance)
        if chance.random() < 0.5:
            settings: Any = damaged_tree(asked.settings, chance)
            data = encode(replace(asked, kind=chance.choice(["describe", "describe", "train"]), settings=settings))
        assert decode_reply(participant.answer(data)).site == "hospital-0"

    assert try_cases(250, "request", case) == 250


def test_a_reply_to_the_server() -> None:
    asked = example_request()
    scores = {"test": {"A": {"loss": 0.5, "metric": 0.5, "auc": 0.5}}, "train": {"loss": 1.0, "drift": 0.1}}
    whole = Reply("A", state=asked.state, num_examples=8, num_steps=1, metrics=scores)
    settings, _ = resolve("histology", "fedavg", "smoke", overrides=tiny())
    plausible = Plausible.of(registry.tasks.find("histology"), settings)

    def case(chance: random.Random) -> None:
        data = damaged_bytes(encode(whole), chance)
        if chance.random() < 0.6:
            changed: Any = damaged_tree(json.loads(json.dumps(whole.metrics)), chance)
            data = encode(replace(whole, metrics=changed, num_steps=chance.choice([1, 2**52, 0, "x"])))
        reply = reply_of("A", data)
        assert isinstance(find_problem(reply, "train", asked.state, {}, plausible), str)

    assert try_cases(300, "reply", case) == 300
