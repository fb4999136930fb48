"""Requests over Flower, with a mailbox instead of a network."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import httpx
import pytest

pytest.importorskip("flwr", reason="harmofl[flower] is not installed")

from harmofl.deployment.flower import exchange as module
from harmofl.deployment.flower.exchange import NOT_CONNECTED, TOO_LATE, FlowerTransport
from harmofl.deployment.flower.mailbox import WENT_AWAY, Connection
from harmofl.errors import RunError
from harmofl.federation.messages import Reply, Request, encode

KEYS = {"A": b"a", "B": b"b"}
REQUEST = Request("0" * 32, "train", 1)


class Mailbox:
    """Answers each message with what a test says; None: not yet."""

    def __init__(self) -> None:
        self.here = {b"a": Connection(1, "monday"), b"b": Connection(2, "monday")}
        self.answers: dict[int, Callable[[], bytes | str | None]] = {
            node: lambda site=site: encode(Reply(site)) for node, site in ((1, "A"), (2, "B"))
        }
        self.removed: set[int] = set()
        self.posted: list[tuple[list[int], bytes]] = []
        self.fetched: list[str] = []

    def connections(self) -> dict[bytes, Connection]:
        return dict(self.here)

    def post(self, nodes: Iterable[int], data: bytes, seconds: float) -> list[str]:
        self.posted.append((list(nodes), data))
        return [f"{len(self.posted)}:{node}" if node not in self.removed else "" for node in nodes]

    def fetch(self, identifier: str) -> bytes | str | None:
        self.fetched.append(identifier)
        return self.answers[int(identifier.partition(":")[2])]()


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(module, "SHORTEST_WAIT", 0.01)
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.02)
    yield Mailbox()
    deadline = time.monotonic() + 5
    while any("_fetch" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread goes on looking for an answer"
        time.sleep(0.01)


def asked(mailbox: Mailbox, timeout: float = 5) -> dict[str, str]:
    """The error of each site's reply."""
    replies = list(FlowerTransport(mailbox, KEYS).ask(dict.fromkeys(KEYS, REQUEST), timeout))  # type: ignore[arg-type]
    assert len(replies) == len(KEYS)
    return {reply.site: reply.error for reply in replies}


def test_every_site_is_asked_and_answers(mailbox: Mailbox) -> None:
    assert asked(mailbox) == {"A": "", "B": ""}


def test_sites_with_equal_requests_are_told_together(mailbox: Mailbox) -> None:
    asked(mailbox)
    assert mailbox.posted == [([1, 2], encode(REQUEST))]


def test_sites_with_different_requests_are_told_one_after_the_other(mailbox: Mailbox) -> None:
    other = replace(REQUEST, score=True)
    list(FlowerTransport(mailbox, KEYS).ask({"B": other, "A": REQUEST}, 5))  # type: ignore[arg-type]
    assert mailbox.posted == [([1], encode(REQUEST)), ([2], encode(other))]


def test_no_more_sites_than_so_many_are_told_together(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1)
    assert asked(mailbox) == {"A": "", "B": ""}
    assert [nodes for nodes, _ in mailbox.posted] == [[1], [2]]


def test_a_site_that_is_not_there_is_not_waited_for(mailbox: Mailbox) -> None:
    del mailbox.here[b"b"]
    assert asked(mailbox) == {"A": "", "B": NOT_CONNECTED}


def test_a_site_that_was_removed_this_moment(mailbox: Mailbox) -> None:
    mailbox.removed = {2}
    assert asked(mailbox) == {"A": "", "B": NOT_CONNECTED}


def test_a_site_that_does_not_answer_in_time(mailbox: Mailbox) -> None:
    mailbox.answers[2] = lambda: None
    assert asked(mailbox, timeout=0.2) == {"A": "", "B": TOO_LATE}


def test_a_site_that_goes_away_is_given_up_at_once(mailbox: Mailbox) -> None:
    mailbox.answers[2] = lambda: mailbox.here.pop(b"b", None) and None
    assert asked(mailbox) == {"A": "", "B": WENT_AWAY}


def test_a_site_that_was_restarted_has_forgotten_the_request(mailbox: Mailbox) -> None:
    mailbox.answers[2] = lambda: mailbox.here.update({b"b": Connection(2, "tuesday")})
    assert asked(mailbox) == {"A": "", "B": WENT_AWAY}


def test_a_site_is_who_its_key_says(mailbox: Mailbox) -> None:
    mailbox.answers[2] = lambda: encode(Reply("A"))
    assert asked(mailbox) == {"A": "", "B": "it answered in the name of 'A'"}


def test_what_an_answer_breaks_is_its_sites_error_only(mailbox: Mailbox) -> None:
    def broken() -> bytes:
        raise RecursionError

    mailbox.answers[2] = broken
    assert asked(mailbox) == {"A": "", "B": "its answer cannot be read (RecursionError)"}


def test_flowers_own_words_are_the_reason(mailbox: Mailbox) -> None:
    mailbox.answers[2] = lambda: "Flower's error 4: expired"
    assert asked(mailbox)["B"] == "Flower's error 4: expired"


def test_a_site_gives_no_orders_to_the_terminal_in_flowers_name(mailbox: Mailbox) -> None:
    mailbox.answers[2] = lambda: "Flower's error 0: \x1b[2J\nowned"
    assert asked(mailbox)["B"].isprintable()


def test_a_server_that_is_gone_ends_the_run(mailbox: Mailbox) -> None:
    def gone() -> bytes:
        raise httpx.ConnectError("gone")

    mailbox.answers[2] = gone
    with pytest.raises(httpx.ConnectError):
        asked(mailbox)


def test_an_answer_that_is_too_large_is_refused(mailbox: Mailbox) -> None:
    transport = FlowerTransport(mailbox, KEYS, largest=10)  # type: ignore[arg-type]
    assert "at most 10" in next(iter(transport.ask({"A": REQUEST}, 5))).error


def test_no_one_looks_for_answers_that_nobody_wants_any_more(mailbox: Mailbox) -> None:
    mailbox.answers[2] = lambda: None
    replies = FlowerTransport(mailbox, KEYS).ask(dict.fromkeys(KEYS, REQUEST), 60)  # type: ignore[arg-type]
    assert next(iter(replies)).site == "A"
    replies.close()  # type: ignore[attr-defined]


def test_all_sites_are_named_once_enough_are_there(mailbox: Mailbox) -> None:
    del mailbox.here[b"b"]
    transport = FlowerTransport(mailbox, KEYS)  # type: ignore[arg-type]
    assert transport.sites(1, 0) == ["A", "B"]
    assert transport.sites(0, 0) == ["A", "B"]
    with pytest.raises(RunError, match="1 of 2 sites are connected; missing: B"):
        transport.sites(2, 0.05)
