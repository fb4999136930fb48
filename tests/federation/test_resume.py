"""Runs that are killed with SIGKILL at every phase of a round, then resumed: as if nothing had happened."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harmofl import cli
from runs import alive_in_group, arguments, call, differences, start, stop_after_round, train, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs signals")]

ROUNDS = 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of a method that nothing interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")

    def run(method: str) -> Path:
        if not (folder / method).exists():
            train(folder / method, method, rounds=ROUNDS)
        return folder / method

    return run


def resume(monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    """The command itself, in this process."""
    monkeypatch.setattr(sys, "argv", ["harmofl", *args, "--resume"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code


def kill_between(out: Path, args: list[str], reached: Path, not_yet: Path) -> None:
    """Kill a run, workers and all, when the one file is there and the other is not; again if that came too late."""
    for _ in range(5):
        process = start(args)
        wait_for(reached.exists, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        if not not_yet.exists():
            return
        shutil.rmtree(out)
    pytest.fail(f"{not_yet} always came too soon after {reached}")


MOMENTS = {
    "before the first checkpoint": ("harmofl", "checkpoint/run.json", "checkpoint/round-00000.safetensors"),
    "before anybody has trained": ("harmofl", "checkpoint/round-00000.safetensors", "checkpoint/sites"),
    "while sites train": (
        "harmofl",
        "checkpoint/sites/hospital-1/round-00002.safetensors",
        "checkpoint/round-00002.safetensors",
    ),
    "while sites with a part of their own train": (
        "fedbn",
        "checkpoint/sites/hospital-2/round-00003.safetensors",
        "checkpoint/round-00003.safetensors",
    ),
    "just after a checkpoint": (
        "moon",
        "checkpoint/round-00001.safetensors",
        "checkpoint/round-00002.safetensors",
    ),
    "while sites with control variates train": (
        "scaffold",
        "checkpoint/sites/hospital-2/round-00002.safetensors",
        "checkpoint/round-00002.safetensors",
    ),
    "while the last model is scored": ("fedadam", "checkpoint/round-00003.safetensors", "model/model.json"),
    "while the models are written": ("fedbn", "model/sites/hospital-0/model.json", "summary.json"),
}
OFTEN = ("while sites train", "just after a checkpoint", "while the models are written")
"""What `make test` tries; the others start as many processes again."""


@pytest.mark.parametrize(
    "moment", [moment if moment in OFTEN else pytest.param(moment, marks=pytest.mark.long) for moment in MOMENTS]
)
def test_a_run_killed_at_any_moment_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Callable[[str], Path], moment: str
) -> None:
    method, reached, not_yet = MOMENTS[moment]
    out = tmp_path / "run"
    args = arguments(out, method, ROUNDS)
    kill_between(out, args, out / reached, out / not_yet)
    assert not (out / "summary.json").exists()

    resume(monkeypatch, args)
    assert differences(out, undisturbed(method)) == []


def test_killing_the_main_process_ends_its_workers_and_the_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Callable[[str], Path]
) -> None:
    out = tmp_path / "run"
    args = arguments(out, "moon", ROUNDS, federation__workers=2)
    process = start(args)
    wait_for((out / "checkpoint/round-00001.safetensors").exists, process)
    assert len(alive_in_group(process.pid)) >= 3  # itself and two workers
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not (out / "summary.json").exists()
    wait_for(lambda: not alive_in_group(process.pid), seconds=15)
    process.communicate()

    resume(monkeypatch, arguments(out, "moon", ROUNDS))  # the number of workers may change
    assert differences(out, undisturbed("moon")) == []


def test_a_truncated_checkpoint_is_skipped_with_a_warning(tmp_path: Path, undisturbed: Callable[[str], Path]) -> None:
    out = tmp_path / "run"

    with pytest.raises(KeyboardInterrupt):
        train(out, "harmofl", rounds=ROUNDS, watch=stop_after_round(2))
    newest = out / "checkpoint/round-00002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])

    done = call([*arguments(out, "harmofl", ROUNDS), "--resume"])
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("harmofl: checkpoint of round 2 cannot be read, using the one before")
    assert differences(out, undisturbed("harmofl")) == []
