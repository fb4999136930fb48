"""What goes wrong in a federation on NVIDIA FLARE stops no run that has a quorum, and loses nothing."""

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from federations import THREE, Live, finished_in_spite_of_kills, live, make_kits, wait_until
from flare_parties import MOODY, program, set_mood
from networks import own_network

from harmofl import registry
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import FEDERATION, SITE, SiteSettings, write_part
from harmofl.devices import threads
from harmofl.errors import RunError
from harmofl.events import Event, RoundFinished, SiteLeftOut
from harmofl.federation.messages import Reply, Request
from harmofl.federation.server import Server
from harmofl.federation.transports import InProcess
from harmofl.runs.folder import RunFolder
from harmofl.settings import resolve
from harmofl.tasks.data_facts import find_data_facts
from runs import differences, equal, records, tiny, train, weights

pytestmark = pytest.mark.engines

MOODY_SITE = THREE[1]
TWO_OF_THREE = {"federation__quorum": 0.6}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One start for all faults: a federation has to outlive them."""
    with live(tmp_path_factory.mktemp("nvflare"), "nvflare", start=[THREE[0], THREE[2]]) as started:
        set_mood(started.place(MOODY_SITE), "")
        started.start(MOODY_SITE, program(MOODY))
        started.wait_until_connected(3)
        yield started


@pytest.fixture
def federation(shared: Live) -> Iterator[Live]:
    """All parties there and in a good mood."""
    for name in ("server", THREE[0], THREE[2]):
        if name not in shared.processes:
            shared.start(name)
    if MOODY_SITE not in shared.processes:
        shared.start(MOODY_SITE, program(MOODY))
    set_mood(shared.place(MOODY_SITE), "")
    yield shared
    set_mood(shared.place(MOODY_SITE), "")


def errors(out: Path, number: int | None = None) -> dict[str, str]:
    """Why sites were left out, in a round or in all."""
    found = (record for record in records(out) if "error" in record and number in (None, record["round"]))
    return {record["site"]: record["error"] for record in found}


class Away(InProcess):
    """All sites in one process, one of which hears nothing in a round."""

    def __init__(self, *arguments: Any, site: str, number: int) -> None:
        super().__init__(*arguments)
        self.site, self.number = site, number

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        heard = {site: each for site, each in requests.items() if (site, each.round) != (self.site, self.number)}
        yield from super().ask(heard, timeout)
        yield from (Reply(site, error="away") for site in requests.keys() - heard.keys())


def run_without(out: Path, site: str, number: int, rounds: int) -> None:
    """The same run in one process, with a site away in one round."""
    settings, method = resolve(
        "histology", "fedavg", "smoke", overrides=tiny(rounds=rounds, data__sites=THREE, **TWO_OF_THREE)
    )
    folder = RunFolder(out)
    transport = Away(settings, method, out, site=site, number=number)
    with threads(1):
        run = folder.begin(settings, find_data_facts(settings), False)
        Server(registry.tasks.find("histology"), method, settings, transport, folder, run).run()
    folder.release()


def test_a_site_killed_in_a_round_is_left_out_of_it_and_comes_back_with_its_state(
    federation: Live, tmp_path: Path
) -> None:
    """Killed in round 2, back before round 3: the same bits as if it had never heard of round 2."""
    kit, killed = federation.place(MOODY_SITE), [0.0]
    set_mood(kit, "waits2")

    def kill() -> None:
        wait_until((kit / "waits").exists, "round 2 begins")
        (kit / "engine" / "log" / "log.txt").write_text("")
        killed[0] = time.monotonic()
        federation.kill(MOODY_SITE)

    def watch(event: Event) -> None:
        if isinstance(event, SiteLeftOut):
            assert time.monotonic() - killed[0] < 15  # it did not take the timeout to notice
            set_mood(kit, "")
            federation.start(MOODY_SITE, program(MOODY))
        elif isinstance(event, RoundFinished) and event.round == 2:
            wait_until(lambda: "registered" in (kit / "engine/log/log.txt").read_text(), "the site is back")

    killer = threading.Thread(target=kill)
    killer.start()
    federation.run(tmp_path / "there", rounds=3, watch=watch, **TWO_OF_THREE)
    killer.join(timeout=60)
    assert errors(tmp_path / "there") == {MOODY_SITE: "it went away before it answered"}
    assert errors(tmp_path / "there", 3) == {}
    run_without(tmp_path / "here", MOODY_SITE, 2, 3)
    assert equal(weights(tmp_path / "here"), weights(tmp_path / "there"))


def test_a_slow_site_is_left_out_and_its_late_answer_is_dropped(federation: Live, tmp_path: Path) -> None:
    kit = federation.place(MOODY_SITE)
    set_mood(kit, "waits1")

    def wake(event: Event) -> None:
        if isinstance(event, SiteLeftOut):
            set_mood(kit, "")

    federation.run(tmp_path / "run", rounds=3, watch=wake, federation__timeout=6, **TWO_OF_THREE)
    assert errors(tmp_path / "run") == {MOODY_SITE: "no answer within federation.timeout"}
    trained = [r["round"] for r in records(tmp_path / "run") if r["phase"] == "train" and r["site"] == MOODY_SITE]
    assert trained == [1, 2, 3]  # its error in round 1, its training afterwards


@pytest.mark.parametrize(
    ("mood", "reason"),
    [
        ("garbage", "not a message"),
        ("nothing", "not a message"),
        ("raises", "did not arrive"),
        ("nan", "NaN"),
        ("shape", "shape"),
        ("extra", "extra"),
        ("missing", "missing"),
        ("name", "in the name of 'hospital-0'"),
    ],
)
def test_an_answer_that_is_none_is_refused_with_its_reason(
    federation: Live, tmp_path: Path, mood: str, reason: str
) -> None:
    set_mood(federation.place(MOODY_SITE), f"{mood}1")
    federation.run(tmp_path / "run", **TWO_OF_THREE)
    found = errors(tmp_path / "run")
    assert found.keys() == {MOODY_SITE}
    assert reason in found[MOODY_SITE]
    assert errors(tmp_path / "run", 2) == {}


def test_a_run_killed_again_and_again_ends_with_the_same_bits(federation: Live, tmp_path: Path) -> None:
    train(tmp_path / "here", "fedavg", rounds=8, data__sites=THREE)
    assert finished_in_spite_of_kills(federation, tmp_path / "there", "fedavg", rounds=8, seed=5)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


def test_a_killed_server_comes_back_and_the_run_is_resumed_to_the_same_bits(federation: Live, tmp_path: Path) -> None:
    train(tmp_path / "here", "fedavg", rounds=3, data__sites=THREE)
    kit = federation.place(MOODY_SITE)
    set_mood(kit, "waits2")
    run = federation.start_run(tmp_path / "there", rounds=3)
    wait_until((kit / "waits").exists, "round 2 begins", run)
    federation.kill("server")
    output, _ = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "NVIDIA FLARE's server is lost" in output
    with pytest.raises(RunError, match="harmofl deploy start"):
        federation.run(tmp_path / "there", rounds=3, resume=True, wait=1)
    set_mood(kit, "")
    federation.start("server")
    wait_until((federation.place("server") / "engine" / "relay.sock").is_socket, "the server is back")
    wait_until(lambda: answers(federation), "the server answers", federation.processes["server"])
    federation.run(tmp_path / "there", rounds=3, resume=True)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


def answers(federation: Live) -> bool:
    try:
        federation.wait_until_connected(3, 60)
    except RunError:
        return False
    return True


def test_a_second_run_is_refused_while_the_first_goes_on(federation: Live, tmp_path: Path) -> None:
    kit = federation.place(MOODY_SITE)
    set_mood(kit, "waits1")
    first = federation.start_run(tmp_path / "first")
    wait_until((kit / "waits").exists, "the first run asks", first)
    second = federation.start_run(tmp_path / "second")
    output, _ = second.communicate(timeout=60)
    assert second.returncode != 0
    assert "another" in output
    set_mood(kit, "")
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 0, output


def test_a_site_that_is_added_takes_part_without_a_new_start_of_the_others(tmp_path: Path) -> None:
    with live(tmp_path, "nvflare", THREE[:2]) as federation:
        federation.wait_until_connected(2)
        grown = federation.kit.federation.model_copy(update={"sites": THREE})
        new = tmp_path / "sites" / THREE[2]
        write_part(new / FEDERATION, grown)
        write_part(new / SITE, SiteSettings(name=THREE[2], data="synthetic", tasks=["histology"], device="cpu"))
        find_engine("nvflare").provision(grown, tmp_path)
        write_part(tmp_path / "server" / FEDERATION, grown)
        federation.start(THREE[2])
        federation.wait_until_connected(3)
        federation.run(tmp_path / "run", rounds=1)
    assert {record["site"] for record in records(tmp_path / "run") if record["phase"] == "train"} == {*THREE, "server"}


def test_a_cut_network_leaves_a_site_out_until_it_is_restored(tmp_path: Path) -> None:
    far, out = THREE[2], tmp_path / "run"
    with own_network() as network:
        make_kits(tmp_path, "nvflare", THREE, host=network.address)
        with live(tmp_path, "nvflare", THREE, start=THREE[:2]) as federation:
            federation.start(far, prefix=network.inside)
            federation.wait_until_connected(3)
            run = federation.start_run(out, rounds=1000, **TWO_OF_THREE)
            wait_until(lambda: finished(out) >= 2, "two rounds", run)
            network.cut()
            wait_until(lambda: errors(out, finished(out)).keys() == {far}, "it is missed", run)
            network.restore()
            missed = finished(out)
            wait_until(lambda: finished(out) > missed and not errors(out, finished(out)), "it is back", run)
            run.kill()
            run.communicate(timeout=30)
    assert errors(out).keys() == {far}


def finished(out: Path) -> int:
    """The last round that the server has finished."""
    found = records(out) if (out / "records.jsonl").exists() else []
    return max((record["round"] for record in found if record["site"] == "server"), default=0)
