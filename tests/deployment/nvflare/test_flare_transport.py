"""A run's side of the relay: one reply per site, each at its time, whatever FLARE's server does."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare", reason="harmofl[nvflare] is not installed")

from flare_kits import federation

from harmofl.deployment.kits import ServerKit
from harmofl.deployment.nvflare import transport as transport_module
from harmofl.deployment.nvflare.relay import Relay
from harmofl.deployment.nvflare.transport import RelayTransport, connect, group_equal
from harmofl.errors import RunError
from harmofl.federation.messages import Reply, Request, decode_request, encode

SITES = ["A", "B", "C"]
Handle = Callable[[Relay, dict[str, Any], bytes], None]


@contextmanager
def served(handle: Handle) -> Iterator[RelayTransport]:
    """A transport whose other end does what `handle` says."""
    ends = socket.socketpair()
    far = Relay(ends[1])

    def loop() -> None:
        try:
            while True:
                handle(far, *far.receive())
        except (EOFError, OSError):
            pass

    thread = threading.Thread(target=loop)
    thread.start()
    transport = RelayTransport(Relay(ends[0]), list(reversed(SITES)))
    try:
        yield transport
    finally:
        transport.close()
        thread.join(timeout=10)
        far.close()


def request(number: int = 1, value: float = 0.0) -> Request:
    return Request("0" * 32, "train", number, state={"weight": torch.full((3,), value)})


def replied(site: str) -> bytes:
    return encode(Reply(site, num_examples=3))


def answer_all(far: Relay, header: dict[str, Any], body: bytes) -> None:
    if header["do"] == "sites":
        far.send({"connected": ["C", "A", "B", "stranger"]})
    elif header["do"] == "ask":
        for site in header["sites"]:
            far.send({"id": header["id"], "site": site, "error": ""}, replied(site))


def test_all_registered_sites_are_named_once_enough_are_there() -> None:
    with served(answer_all) as transport:
        assert transport.sites(3, 5) == SITES
        assert transport.sites(0, 0) == SITES


def test_those_who_are_missing_are_named() -> None:
    def handle(far: Relay, header: dict[str, Any], body: bytes) -> None:
        far.send({"connected": ["B"]})

    with served(handle) as transport, pytest.raises(RunError, match=r"1 of 3 sites are connected; missing: A, C"):
        transport.sites(2, 0.3)


def test_every_site_answers() -> None:
    with served(answer_all) as transport:
        replies = list(transport.ask({site: request() for site in SITES}, 5))
    assert sorted(reply.site for reply in replies) == SITES
    assert {reply.num_examples for reply in replies} == {3}


def test_a_site_that_is_away_says_so_at_once_and_the_others_answer() -> None:
    def handle(far: Relay, header: dict[str, Any], body: bytes) -> None:
        if header["do"] == "ask":
            far.send({"id": header["id"], "site": "A", "error": "not connected"})
            far.send({"id": header["id"], "site": "B", "error": ""}, replied("B"))

    with served(handle) as transport:
        replies = {reply.site: reply for reply in transport.ask({"A": request(), "B": request()}, 5)}
    assert replies["A"].error == "not connected"
    assert not replies["B"].error


def test_a_site_gives_no_orders_to_the_terminal_in_flares_name() -> None:
    def handle(far: Relay, header: dict[str, Any], body: bytes) -> None:
        if header["do"] == "ask":
            far.send({"id": header["id"], "site": "A", "error": "its answer did not arrive (\x1b[2J\nowned)"})

    with served(handle) as transport:
        (reply,) = transport.ask({"A": request()}, 5)
    assert reply.error.isprintable()


def test_time_may_be_longer_than_any_single_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(far: Relay, header: dict[str, Any], body: bytes) -> None:
        if header["do"] == "ask":
            time.sleep(0.1)
            far.send({"id": header["id"], "site": "A", "error": ""}, replied("A"))

    monkeypatch.setattr(transport_module, "LONGEST_WAIT", 0.01)
    with served(handle) as transport:
        assert [reply.error for reply in transport.ask({"A": request()}, 1e12)] == [""]


def test_time_runs_out_for_each_request() -> None:
    forgotten = threading.Event()

    def handle(far: Relay, header: dict[str, Any], body: bytes) -> None:
        if header["do"] == "ask":
            far.send({"id": header["id"], "site": "A", "error": ""}, replied("A"))
        elif header["do"] == "forget":
            forgotten.set()

    with served(handle) as transport:
        started = time.monotonic()
        replies = {reply.site: reply.error for reply in transport.ask({"A": request(), "B": request()}, 0.5)}
        assert time.monotonic() - started < 3
        assert forgotten.wait(5)  # FLARE's server need not wait any longer either
    assert replies == {"A": "", "B": "no answer within federation.timeout"}


def test_a_late_reply_to_an_older_request_is_dropped() -> None:
    asked: list[int] = []

    def handle(far: Relay, header: dict[str, Any], body: bytes) -> None:
        if header["do"] != "ask":
            return
        asked.append(header["id"])
        if len(asked) == 2:
            far.send({"id": asked[0], "site": "A", "error": ""}, encode(Reply("A", num_examples=111)))
            far.send({"id": asked[1], "site": "A", "error": ""}, encode(Reply("A", num_examples=222)))

    with served(handle) as transport:
        assert [reply.error for reply in transport.ask({"A": request(1)}, 0.2)] != [""]
        assert [reply.num_examples for reply in transport.ask({"A": request(2)}, 5)] == [222]


def test_a_second_answer_and_one_of_a_site_that_was_not_asked_are_dropped() -> None:
    def handle(far: Relay, header: dict[str, Any], body: bytes) -> None:
        if header["do"] == "ask":
            for site in ("C", "A", "A", "B"):
                far.send({"id": header["id"], "site": site, "error": ""}, replied(site))

    with served(handle) as transport:
        assert [reply.site for reply in transport.ask({"A": request(), "B": request()}, 5)] == ["A", "B"]


def test_garbage_is_a_reply_with_a_reason() -> None:
    def handle(far: Relay, header: dict[str, Any], body: bytes) -> None:
        if header["do"] == "ask":
            far.send({"id": header["id"], "site": "A", "error": ""}, b"garbage")
            far.send({"id": header["id"], "site": "B", "error": ""}, replied("A"))

    with served(handle) as transport:
        replies = {reply.site: reply.error for reply in transport.ask({"A": request(), "B": request()}, 5)}
    assert "not a message" in replies["A"]
    assert "in the name of 'A'" in replies["B"]


def test_the_end_of_flares_server_is_no_sites_fault() -> None:
    def handle(far: Relay, header: dict[str, Any], body: bytes) -> None:
        far.send({"id": header["id"], "site": "A", "error": ""}, replied("A"))
        far.close()

    with served(handle) as transport:
        replies = transport.ask({"A": request(), "B": request()}, 30)
        assert next(replies).site == "A"
        with pytest.raises(RunError, match=r"lost.*--resume"):
            next(replies)
        with pytest.raises(RunError, match="lost"):
            transport.sites(1, 5)
        with pytest.raises(RunError, match="lost"):
            list(transport.ask({"A": request()}, 5))


def test_equal_requests_travel_once() -> None:
    requests = {"A": request(1, 0.5), "B": request(1, 0.25), "C": request(1, 0.5)}
    grouped = [(float(decode_request(data).state["weight"][0]), sites) for data, sites in group_equal(requests)]
    assert grouped == [(0.5, ["A", "C"]), (0.25, ["B"])]


def test_no_server_is_a_clear_error(tmp_path: Any) -> None:
    with pytest.raises(RunError, match="harmofl deploy start"), connect(ServerKit(tmp_path, federation(SITES))):
        pass
