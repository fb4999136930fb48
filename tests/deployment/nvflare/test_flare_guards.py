"""What may pass between FLARE's processes, message by message."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="harmofl[nvflare] is not installed")

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, MessageType, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from harmofl.deployment.allowances import Allowances
from harmofl.deployment.nvflare import arrivals as arriving
from harmofl.deployment.nvflare import runtime
from harmofl.deployment.nvflare.arrivals import Arrivals

CLIENTS = {"A", "B"}


class Cell:
    """Keeps what is registered with it."""

    def __init__(self) -> None:
        self.filters: list[Callable[[Message], Message | None]] = []
        self.handlers: dict[tuple[str, str], Callable[[Message], Any]] = {}
        self.heard: list[str] = []
        self.core_cell = self

    def add_incoming_filter(self, channel: str, topic: str, cb: Callable[[Message], Message | None]) -> None:
        assert (channel, topic) == ("*", "*")
        self.filters.append(cb)

    def register_request_cb(self, channel: str, topic: str, cb: Callable[[Message], Any]) -> None:
        self.handlers[channel, topic] = cb

    def passes(self, message: Message) -> bool:
        replies = [look(message) for look in self.filters]
        codes = [reply.get_header(MessageHeaderKey.RETURN_CODE) for reply in replies if reply is not None]
        assert set(codes) <= {ReturnCode.UNAUTHENTICATED}
        return not codes


def message(
    channel: str, topic: str, origin: str, to: str = "server", cn: Any = "", kind: str = MessageType.REQ, **more: str
) -> Message:
    headers = {
        MessageHeaderKey.CHANNEL: channel,
        MessageHeaderKey.TOPIC: topic,
        MessageHeaderKey.ORIGIN: origin,
        MessageHeaderKey.DESTINATION: to,
        MessageHeaderKey.MSG_TYPE: kind,
    }
    made = Message({**headers, **more}, b"")
    made.set_prop(MessagePropKey.COMMON_NAME, origin if cn == "" else cn)
    return made


def stream(channel: str, topic: str, encoding: str = "bytes") -> dict[str, str]:
    return {
        StreamHeaderKey.CHANNEL: channel,
        StreamHeaderKey.TOPIC: topic,
        StreamHeaderKey.PAYLOAD_ENCODING: encoding,
    }


@pytest.fixture
def server() -> Cell:
    cell = Cell()
    runtime.guard_server(cell, lambda: CLIENTS, cell.heard.append, lambda sender, size: True)
    return cell


@pytest.fixture
def site() -> Cell:
    cell = Cell()
    runtime.guard_site(cell, lambda stream, size, announced: True)
    return cell


@pytest.mark.parametrize("topic", ["challenge", "register", "heart_beat", "quit"])
def test_a_site_may_register(server: Cell, topic: str) -> None:
    assert server.passes(message("task", topic, "A"))


def test_whatever_comes_from_a_site_is_a_sign_of_life_and_nothing_from_others(server: Cell) -> None:
    for sender, name in [("A", "A"), ("B", "A"), ("C", "C")]:
        server.passes(message("sm__STREAM", "sm__ACK", name, cn=sender))
    assert server.heard == ["A"]


def test_a_site_may_answer(server: Cell) -> None:
    assert server.passes(message("sm__STREAM", "sm__DATA", "A", **stream("return_only", "harmofl:ask")))
    assert server.passes(message("sm__STREAM", "sm__ACK", "A"))
    assert server.passes(message("harmofl", "ask", "A", kind=MessageType.REPLY))


@pytest.mark.parametrize(
    "bad",
    [
        message("task", "register", "C"),
        message("task", "register", "A", cn=None),
        message("task", "register", "A", cn="B"),
        message("task", "register", "server", cn="A"),
        message("task", "register", "A.child", cn="A"),
        message("sm__STREAM", "sm__DATA", "A", to="B", **stream("harmofl", "ask")),
        message("sm__STREAM", "sm__DATA", "A", to="B", kind=MessageType.REPLY),
        message("hci_channel", "command", "A"),
        message("task", "get_task", "A"),
        message("server_command", "submit_update", "A"),
        message("aux_communication", "fed.event", "A"),
        message("_net_manager", "stop", "A"),
        message("cellnet.channel", "bulk", "A"),
        message("sm__STREAM", "sm__DATA", "A", **stream("aux_communication", "x")),
        message("sm__STREAM", "sm__DATA", "A", **stream("return_only", "harmofl:ask", "fobs")),
    ],
    ids=[
        "left the federation", "no certificate", "another's certificate", "as the server", "as a child",
        "asks a site", "answers a site", "admin command", "job's task", "job's update", "aux", "stops a cell", "bulk",
        "other stream", "objects",
    ],
)  # fmt: skip
def test_nothing_else_reaches_the_server_or_another_site(server: Cell, bad: Message) -> None:
    assert not server.passes(bad)


def test_the_server_may_ask(site: Cell) -> None:
    assert site.passes(message("sm__STREAM", "sm__DATA", "server", "A", **stream("harmofl", "ask")))
    assert site.passes(message("task", "heart_beat", "server", "A", kind=MessageType.REPLY))


@pytest.mark.parametrize(
    "bad",
    [
        message("sm__STREAM", "sm__DATA", "B", "A", **stream("harmofl", "ask")),
        message("sm__STREAM", "sm__DATA", "server.job", "A", **stream("harmofl", "ask")),
        message("sm__STREAM", "sm__DATA", "server", "A", **stream("harmofl", "ask", "fobs")),
        message("sm__STREAM", "sm__DATA", "server", "A", **stream("aux_communication", "x")),
        message("admin", "train.deploy", "server", "A"),
        message("admin", "sys.shell", "server", "A"),
        message("_net_manager", "stop_cell", "server", "A"),
        message("harmofl", "ask", "server", "A"),
    ],
    ids=["a site asks", "a job asks", "objects", "aux", "deploy a job", "shell", "stop", "not as a stream"],
)
def test_nothing_else_reaches_a_site(site: Cell, bad: Message) -> None:
    assert not site.passes(bad)


@pytest.mark.parametrize("url", ["tcp://10.0.0.7:5432", "file:///srv/images"])
@pytest.mark.parametrize("kind", [MessageType.REQ, MessageType.REPLY])
def test_nobody_has_another_party_connect_to_an_address(server: Cell, site: Cell, url: str, kind: str) -> None:
    named = {"kind": kind, MessageHeaderKey.CONN_URL: url, MessageHeaderKey.FROM_CELL: "somebody"}
    assert not site.passes(message("task", "heart_beat", "server", "A", **named))
    assert not server.passes(message("task", "heart_beat", "A", **named))


def test_a_message_that_breaks_the_guard_does_not_pass(site: Cell) -> None:
    assert not site.passes(SimpleNamespace())


def test_who_knocks_again_and_again_does_not_fill_the_log(site: Cell, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(50):
        site.passes(message("admin", "sys.shell", "server", "A"))
    assert caplog.text.count("sys.shell") == 1
    for number in range(1000):
        site.passes(message("admin", f"made.up.{number}", "server", "A"))
    site.passes(message("admin", "sys.shell", "server", "A"))
    assert caplog.text.count("sys.shell") == 2  # a thousand reasons are not kept


def test_only_bytes_are_taken() -> None:
    assert runtime.read_payload(bytearray(b"ab")) == runtime.Outcome(b"ab")
    assert runtime.read_payload(memoryview(b"ab")) == runtime.Outcome(b"ab")
    for payload in [None, "text", {"a": 1}, [b"ab"]]:
        assert runtime.read_payload(payload).error


def test_the_answer_is_sent_when_the_work_is_done() -> None:
    cell, work = Cell(), Future[bytes]()
    runtime.answer_with(cell, lambda data: work)
    promised = cell.handlers["harmofl", "ask"](Message({}, b"request"))
    assert not promised.done()
    work.set_result(b"reply")
    assert promised.result(timeout=1).payload == b"reply"


def test_work_that_fails_tells_no_reason() -> None:
    cell, work = Cell(), Future[bytes]()
    runtime.answer_with(cell, lambda data: work)
    promised = cell.handlers["harmofl", "ask"](Message({}, b"request"))
    work.set_exception(ValueError("/data/patient-7.dcm"))
    reply = promised.result(timeout=1)
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.PROCESS_EXCEPTION
    assert "patient" not in repr(reply.headers) + repr(reply.payload)


def test_objects_are_no_request() -> None:
    cell = Cell()
    runtime.answer_with(cell, lambda data: pytest.fail("it was worked on"))
    reply = cell.handlers["harmofl", "ask"](Message({}, {"run": "code"}))
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.INVALID_REQUEST


@pytest.mark.parametrize("name", ["int_listener", "communicator", "in_filter_reg"])
def test_the_pinned_flare_still_has_what_we_use(name: str) -> None:
    from inspect import getsource

    from nvflare.fuel.f3.cellnet.core_cell import CoreCell

    assert f"self.{name} = " in getsource(CoreCell.__init__)


def test_the_pinned_flare_waits_as_long_as_we_say() -> None:
    from inspect import getsource

    from nvflare.fuel.f3.sfm import conn_manager

    assert "MAX_WAIT" in getsource(conn_manager.ConnManager.start_connector_task)


def test_the_parts_of_an_answer_are_counted_and_the_refusal_is_noted() -> None:
    cell, allowances, noted = Cell(), Allowances(), []  # type: ignore[var-annotated]
    runtime.guard_server(
        cell, lambda: CLIENTS, cell.heard.append, allowances.spend, lambda who, reason: noted.append((who, reason))
    )

    def part(size: int) -> Message:
        made = message("sm__STREAM", "sm__DATA", "A", **stream("return_only", "harmofl:ask"))
        made.payload = bytes(size)
        return made

    assert not cell.passes(part(1))  # it was not asked
    assert not cell.passes(part(0))
    allowances.grant("A", 100_000)
    assert cell.passes(part(60_000))
    assert not cell.passes(part(60_000))
    assert noted == [("A", "A sends more than it was asked for")] * 3


def beginning(of: int, number: int = 1, **more: object) -> Message:
    """The first part of a stream, which says how long it is; FLARE takes so much memory for it at once."""
    headers = {StreamHeaderKey.SEQUENCE: 0, StreamHeaderKey.SIZE: of, StreamHeaderKey.STREAM_ID: number}
    return message("sm__STREAM", "sm__DATA", **more, **headers)  # type: ignore[arg-type]


def test_an_answer_that_only_says_that_it_is_long_is_refused() -> None:
    cell, allowances = Cell(), Allowances()
    runtime.guard_server(cell, lambda: CLIENTS, cell.heard.append, allowances.spend)
    answer = {"origin": "A", **stream("return_only", "harmofl:ask")}
    allowances.grant("A", 100_000)
    assert not cell.passes(beginning(2**31, **answer))
    allowances.grant("A", 100_000)
    assert cell.passes(beginning(50_000, **answer))
    assert not cell.passes(beginning("long", **answer))  # type: ignore[arg-type]


def test_a_server_that_sends_more_at_once_than_a_site_takes_is_refused() -> None:
    cell, arrivals = Cell(), Arrivals(2 * 10**6 - 1)
    runtime.guard_site(cell, arrivals.admit)
    runtime.answer_with(cell, lambda data: Future(), arrivals.end)
    request = {"origin": "server", "to": "A", **stream("harmofl", "ask")}
    assert cell.passes(beginning(10**6, 1, **request))
    assert not cell.passes(beginning(10**6, 2, **request))
    cell.handlers["harmofl", "ask"](Message({StreamHeaderKey.STREAM_ID: 1}, b"it is whole"))
    assert cell.passes(beginning(10**6, 2, **request))
    assert not cell.passes(beginning(2**31, 3, **request))


def test_a_stream_that_never_ended_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = Arrivals(100)
    assert arrivals.admit("given up", 80)
    assert not arrivals.admit("next", 80)
    later = time.monotonic() + arriving.FORGOTTEN + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert arrivals.admit("next", 80)
