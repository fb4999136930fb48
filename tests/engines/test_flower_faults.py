"""Flower with real processes that are killed, cut off, slow or wrong: the rounds go on, and nothing is left behind."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from federations import THREE, Live, finished_in_spite_of_kills, live, make_kits, wait_until
from flower_sites import MISDEEDS
from networks import own_network

from harmofl.errors import RunError
from runs import after_round, differences, records, train

pytestmark = pytest.mark.engines

LAST = THREE[-1]
REASONS = {
    "garbage": "not a message",
    "empty": "not a message",
    "name": "in the name of",
    "nan": "",
    "shape": "shape",
    "extra": "os.system",
    "missing": "",
    "huge": "",  # far larger than the model: nobody reads it
}
"""What the records say of each misdeed, at least."""


COMMAND = (sys.executable, str(Path(__file__).parent / "flower_sites.py"))
"""The last site's process: it does what a test tells it."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("flower"), "flower", start=THREE[:2]) as started:
        started.start(LAST, COMMAND)
        yield started


def errors(out: Path, phase: str = "train") -> dict[int, dict[str, str]]:
    """Who was left out of which round, and why."""
    found: dict[int, dict[str, str]] = {}
    for record in records(out):
        if "error" in record and record["phase"] == phase:
            found.setdefault(record["round"], {})[record["site"]] = record["error"]
    return found


@pytest.fixture
def misbehave(federation: Live) -> Iterator[Callable[[str], None]]:
    """Tell the last site how to misbehave; it is honest again afterwards."""
    place = federation.place(LAST)
    signs = [place / name for name in ("how", "asleep", "woken")]
    yield (place / "how").write_text  # type: ignore[misc]
    for sign in signs:
        sign.unlink(missing_ok=True)


def children(process: subprocess.Popen[Any]) -> list[int]:
    """The processes that a process has started."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()] + [
        int(pid)
        for task in Path(f"/proc/{process.pid}/task").iterdir()
        for pid in (task / "children").read_text().split()
        if task.name != str(process.pid)
    ]


def runs_still(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_site_killed_in_a_round_is_named_and_rejoins_with_its_state(
    tmp_path: Path, federation: Live, misbehave: Callable[[str], None]
) -> None:
    misbehave("sleepy")
    run = federation.start_run(tmp_path / "run", "fedbn", rounds=6)
    wait_until((federation.place(LAST) / "asleep").exists, "it works on round 2", run)
    orphans = children(federation.processes[LAST])
    assert orphans
    killed = time.monotonic()
    federation.kill(LAST)
    wait_until(lambda: not any(map(runs_still, orphans)), "its SuperNode has left with it", seconds=15)
    wait_until(lambda: 2 in errors(tmp_path / "run"), "round 2 ends without it", run, seconds=30)
    assert time.monotonic() - killed < 25
    federation.start(LAST, COMMAND)
    said, _ = run.communicate(timeout=180)
    assert run.returncode == 0, said
    left_out = errors(tmp_path / "run")
    assert left_out[2] == {LAST: "went away during the round"}
    assert 1 not in left_out
    assert all(set(sites) == {LAST} for sites in left_out.values())
    versions = sorted(path.name for path in federation.site_kit(LAST).state("").rglob("*.safetensors"))
    assert versions


def test_a_slow_site_is_left_out_of_its_round_only(
    tmp_path: Path, federation: Live, misbehave: Callable[[str], None]
) -> None:
    misbehave("sleepy")
    wake = after_round(2, (federation.place(LAST) / "woken").touch)
    federation.run(tmp_path / "run", rounds=5, federation__timeout=30.0, watch=wake)
    left_out = errors(tmp_path / "run")
    assert left_out[2] == {LAST: "no answer within federation.timeout"}
    assert 1 not in left_out
    assert 5 not in left_out, "its late answer was dropped, and it is with us again"


@pytest.mark.parametrize("how", list(MISDEEDS))
def test_a_wrong_answer_is_refused_with_its_reason_and_the_round_goes_on(
    tmp_path: Path, federation: Live, misbehave: Callable[[str], None], how: str
) -> None:
    misbehave(how)
    federation.run(tmp_path / "run", rounds=1)
    [(number, refused)] = errors(tmp_path / "run").items()
    assert number == 1
    assert set(refused) == {LAST}
    assert REASONS[how] in refused[LAST]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_run_killed_at_random_moments_is_resumed_to_the_same_bits(
    tmp_path: Path, federation: Live, seed: int
) -> None:
    train(tmp_path / "here", "harmofl", rounds=5, data__sites=THREE)
    assert finished_in_spite_of_kills(federation, tmp_path / "there", "harmofl", rounds=5, seed=seed)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


def test_a_server_that_is_killed_and_started_again_finds_its_sites_and_resumes(
    tmp_path: Path, federation: Live
) -> None:
    train(tmp_path / "here", "fedadam", rounds=4, data__sites=THREE)

    def kill_and_start() -> None:
        orphans = children(federation.processes["server"])
        federation.kill("server")
        wait_until(lambda: not any(map(runs_still, orphans)), "its SuperLink has left with it", seconds=15)
        federation.start("server")

    with pytest.raises(RunError, match="--resume"):
        federation.run(tmp_path / "there", "fedadam", rounds=4, watch=after_round(2, kill_and_start))
    wait_until(lambda: federation.is_up(), "the server is back")
    federation.run(tmp_path / "there", "fedadam", rounds=4, resume=True)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


def test_a_superlink_that_dies_is_started_again(federation: Live) -> None:
    [superlink] = children(federation.processes["server"])
    subprocess.run(["kill", "-9", str(superlink)], check=True)
    wait_until(lambda: children(federation.processes["server"]) not in ([], [superlink]), "another one runs")
    wait_until(lambda: federation.is_up(), "the server is back")
    federation.wait_until_connected(3)


def test_a_supernode_that_dies_is_started_again(federation: Live) -> None:
    [supernode] = children(federation.processes[LAST])
    subprocess.run(["kill", "-9", str(supernode)], check=True)
    wait_until(lambda: children(federation.processes[LAST]) not in ([], [supernode]), "another one runs")
    federation.wait_until_connected(3)


def test_nothing_runs_on_after_a_stop(tmp_path: Path) -> None:
    with live(tmp_path, "flower", THREE[:1]) as federation:
        federation.wait_until_connected(1)
        processes = [pid for process in federation.processes.values() for pid in (process.pid, *children(process))]
        assert len(processes) == 4
        assert federation.stop(THREE[0]) == 0
        assert federation.stop("server") == 0
        assert not any(map(runs_still, processes))
        assert not list(tmp_path.rglob("engine/secret"))


def test_a_cut_network_leaves_a_site_out_until_it_is_restored(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with own_network() as network:
        make_kits(tmp_path, "flower", THREE, host=network.address)
        with live(tmp_path, "flower", THREE, start=THREE[:2]) as federation:
            federation.start(LAST, prefix=network.inside)
            federation.wait_until_connected(3)
            run = federation.start_run(out, rounds=100)
            wait_until(lambda: done(out) >= 2, "two rounds", run)
            network.cut()
            wait_until(lambda: LAST in errors(out).get(done(out), {}), "it is missed", run)
            network.restore()
            wait_until(lambda: done(out) > 4 and done(out) not in errors(out), "it is back", run, seconds=120)
            run.kill()
            run.communicate()
    assert all(set(sites) == {LAST} for sites in errors(out).values())


def done(out: Path) -> int:
    """The last round that the server has finished."""
    if not (out / "records.jsonl").exists():
        return 0
    return max((record["round"] for record in records(out) if record["site"] == "server"), default=0)
