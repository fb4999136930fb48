"""The two ends inside FLARE's processes, without FLARE."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="harmofl[nvflare] is not installed")

from flare_kits import federation, write_kits

from harmofl.deployment.nvflare.relay import Relay, listen, open_relay
from harmofl.deployment.nvflare.runtime import Outcome, Presence
from harmofl.deployment.nvflare.server import ConnectedSites, Desk, Members, SiteGone
from harmofl.deployment.nvflare.site import RequestQueue
from harmofl.federation.messages import decode_reply


class Answers(ConnectedSites):
    """Sites of which A answers, B fails, and C waits until nobody waits for it."""

    def __init__(self) -> None:
        super().__init__(engine=None, names=lambda: ["A", "B", "C"], presence=None)  # type: ignore[arg-type]
        object.__setattr__(self, "given_up", threading.Event())

    def connected(self) -> list[str]:
        return ["A", "C"]

    def ask(self, site: str, data: bytes, timeout: float, over: threading.Event, largest: int) -> Outcome:
        if site == "A":
            return Outcome(data[::-1])
        if site == "B":
            raise ValueError("FLARE is not well")
        assert over.wait(20)
        self.given_up.set()  # type: ignore[attr-defined]
        return Outcome(b"too late")


@pytest.fixture
def sites() -> Answers:
    return Answers()


@pytest.fixture
def path(tmp_path: Path, sites: Answers) -> Iterator[Path]:
    listener = listen(tmp_path / "relay.sock")
    thread = threading.Thread(target=serve, args=(Desk(sites, listener),), daemon=True)
    thread.start()
    yield tmp_path / "relay.sock"
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=10)
    listener.close()


def serve(desk: Desk) -> None:
    with suppress(OSError):  # the listener is closed with the test
        desk.serve()


def visit(path: Path) -> Relay:
    relay = open_relay(path)
    relay._socket.settimeout(20)
    assert relay.receive() == ({"ready": True}, b"")
    return relay


def test_requests_go_to_the_sites_and_replies_come_back(path: Path) -> None:
    run = visit(path)
    run.send({"do": "sites"})
    assert run.receive() == ({"connected": ["A", "C"]}, b"")
    run.send({"do": "ask", "id": 7, "sites": ["A", "B"], "timeout": 5, "largest": 100}, b"abc")
    replies = {header["site"]: (header, body) for header, body in (run.receive(), run.receive())}
    assert replies["A"] == ({"id": 7, "site": "A", "error": ""}, b"cba")
    assert replies["B"][0]["error"] == "NVIDIA FLARE failed (ValueError)"
    run.close()


def test_when_a_run_goes_away_nobody_waits_for_its_sites(path: Path, sites: Answers) -> None:
    run = visit(path)
    run.send({"do": "ask", "id": 1, "sites": ["C"], "timeout": 600, "largest": 100})
    run.close()
    assert sites.given_up.wait(10)  # type: ignore[attr-defined]
    visit(path).close()  # and the next run finds the desk free


def test_a_run_can_give_up_one_request(path: Path, sites: Answers) -> None:
    run = visit(path)
    run.send({"do": "ask", "id": 1, "sites": ["C"], "timeout": 600, "largest": 100})
    run.send({"do": "forget", "id": 1})
    assert sites.given_up.wait(10)  # type: ignore[attr-defined]
    run.send({"do": "sites"})
    assert run.receive()[0] == {"connected": ["A", "C"]}  # the late answer was not sent
    run.close()


@pytest.mark.parametrize("said", [{}, {"do": "dance"}, {"do": "ask", "id": "x"}, {"do": "ask", "id": 1, "sites": "A"}])
def test_what_no_run_says_ends_the_connection(path: Path, said: dict[str, object]) -> None:
    run = visit(path)
    run.send(said)
    with pytest.raises((EOFError, OSError)):
        run.receive()
    run.close()
    visit(path).close()


def test_a_second_run_is_refused(path: Path) -> None:
    run, second = visit(path), open_relay(path)
    second._socket.settimeout(20)
    assert "another run" in second.receive()[0]["error"]
    run.close()
    second.close()


def test_a_site_that_has_come_back_no_longer_knows_of_the_request() -> None:
    tokens = {"A": "first"}
    sites = SimpleNamespace(token=tokens.get)
    waiting = SiteGone(sites, "A", "first", threading.Event())  # type: ignore[arg-type]
    assert not waiting.triggered
    tokens["A"] = "second"
    assert waiting.triggered


@pytest.mark.parametrize(
    ("connected", "known_at", "silent_for", "there"),
    [(True, 11.0, 1.0, True), (True, 9.0, 1.0, False), (True, 11.0, 31.0, False), (False, 11.0, 1.0, False)],
    ids=["there", "not registered yet", "silent", "not connected"],
)
def test_a_site_is_there_once_it_is_heard_of_and_until_it_is_silent(
    monkeypatch: pytest.MonkeyPatch, connected: bool, known_at: float, silent_for: float, there: bool
) -> None:
    noted: list[Callable[[object], None]] = []
    core = SimpleNamespace(
        is_cell_connected=lambda name: connected,
        set_cell_connected_cb=noted.append,
        set_cell_disconnected_cb=noted.append,
    )
    told: list[tuple[str, str]] = []
    presence = Presence(SimpleNamespace(core_cell=core), lambda *what: told.append(what))
    monkeypatch.setattr("time.time", lambda: 10.0)
    noted[0](SimpleNamespace(get_fqcn=lambda: "A"))
    presence.hear("A")
    now = time.monotonic() + silent_for
    monkeypatch.setattr("time.monotonic", lambda: now)
    client = SimpleNamespace(token="mine", last_connect_time=known_at, get_fqcn=lambda: "A")
    assert presence.token(client) == ("mine" if there else None)
    assert presence.token(None) is None
    noted[1](SimpleNamespace(get_fqcn=lambda: "A"))
    assert told == [("A", "is connected"), ("A", "is gone")]


class Slow:
    """A participant that works until it is let go."""

    kit = SimpleNamespace(name="A")

    def __init__(self) -> None:
        self.go = threading.Event()
        self.done: list[bytes] = []

    def answer(self, data: bytes) -> bytes:
        assert self.go.wait(20)
        self.done.append(data)
        return data.upper()


def test_of_requests_that_waited_only_the_newest_is_worked_on() -> None:
    participant = Slow()
    line = RequestQueue(participant)  # type: ignore[arg-type]
    first = line.work(b"first")
    while not first.running():
        time.sleep(0.001)
    second, third = line.work(b"second"), line.work(b"third")
    participant.go.set()
    assert first.result(20) == b"FIRST"
    assert "newer" in decode_reply(second.result(20)).error
    assert third.result(20) == b"THIRD"
    assert participant.done == [b"first", b"third"]


def test_a_site_that_is_added_or_removed_needs_no_new_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmofl.deployment.nvflare.server.FRESH", -1.0)
    write_kits(tmp_path, federation(["A"]))
    members = Members(tmp_path / "server")
    assert members.names() == ["A"]
    write_kits(tmp_path, federation(["A", "B"]))
    assert members.names() == ["A", "B"]
    (tmp_path / "server" / "federation.toml").write_text("not toml [")
    assert members.names() == ["A", "B"]
