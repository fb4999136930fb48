"""Everything that harmofl uses of a running FLARE beyond its components and events, in one place.

FLARE's processes exchange messages over cells. A job would get a cell of its own, a process of its own and code of
its own; here the processes that FLARE runs anyway exchange our bytes over a channel of ours, so that a site that
starts late or again is simply there, and so that no site ever runs a job. `tests/deployment/nvflare/` fails with the
name that is gone if another version of FLARE no longer has it; pyproject.toml pins the version.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from nvflare.apis.client import Client
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CellAgent
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    Encoding,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm import conn_manager
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)

logger = logging.getLogger(__name__)

CHANNEL = "harmofl"
TOPIC = "ask"
ROOT = FQCN.ROOT_SERVER
SILENCE = 30.0
"""Seconds after which a site that nothing came from is taken for gone; its heart beats every few."""

NOTES = 2**10
"""Bytes that every part of a stream counts, also one without any."""

PAUSE = 60.0
MOST_REASONS = 100

STREAMS = {(STREAM_CHANNEL, topic) for topic in (STREAM_ACK_TOPIC, STREAM_DATA_TOPIC, STREAM_ERROR_TOPIC)}
GOODBYE = (CellChannel.CELLNET, CellChannelTopic.Bye)
MEMBERSHIP = {
    (CellChannel.SERVER_MAIN, topic)
    for topic in (
        CellChannelTopic.Challenge,
        CellChannelTopic.Register,
        CellChannelTopic.HEART_BEAT,
        CellChannelTopic.Quit,
    )
}
TO_SERVER = STREAMS | MEMBERSHIP | {GOODBYE}
TO_SITE = STREAMS | {GOODBYE}
REQUESTS = (CHANNEL, TOPIC)
REPLIES = (CellChannel.RETURN_ONLY, f"{CHANNEL}:{TOPIC}")


class Signal(Protocol):
    """What FLARE looks at a few times a second while it waits."""

    @property
    def triggered(self) -> bool:
        """Whether to stop waiting."""


@dataclass(frozen=True)
class Outcome:
    """Bytes from the other side, or why there are none."""

    data: bytes | bytearray | memoryview = b""
    error: str = ""


def ask(cell: Cell, client: str, data: bytes, timeout: float, signal: Signal) -> Outcome:
    """Send bytes to a site and wait for those that it answers."""
    reply = cell.send_request(
        channel=CHANNEL,
        topic=TOPIC,
        target=client,
        request=Message({}, data),
        timeout=timeout,
        optional=True,
        abort_signal=signal,
    )
    code = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
    if signal.triggered and code != ReturnCode.OK:
        return Outcome(error="it went away before it answered")
    if code != ReturnCode.OK:
        return Outcome(error=f"its answer did not arrive ({code})")
    return read_payload(reply.payload)


def read_payload(payload: object) -> Outcome:
    """Return the bytes of a message; FLARE would deliver other things, too, if the other side sent them."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return Outcome(payload)
    return Outcome(error="it sent something that is not bytes")


def answer_with(
    cell: Cell, work: Callable[[bytes], Future[bytes]], arrived: Callable[[Hashable], None] = lambda stream: None
) -> None:
    """Answer the server's requests; FLARE sends the future's result, whenever there is one.

    `arrived`: notes that a stream has come to its end.
    """

    def handle(request: Message) -> Future[Message] | Message:
        arrived(request.get_header(StreamHeaderKey.STREAM_ID))
        received = read_payload(request.payload)
        if received.error:
            return make_reply(ReturnCode.INVALID_REQUEST)
        reply: Future[Message] = Future()
        work(bytes(received.data)).add_done_callback(lambda done: reply.set_result(make_answer(done)))
        return reply

    cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=handle)


def make_answer(done: Future[bytes]) -> Message:
    """Make the message that reports the result of some work."""
    if done.cancelled() or done.exception() is not None:
        return make_reply(ReturnCode.PROCESS_EXCEPTION)
    return make_reply(ReturnCode.OK, body=done.result())


# Who may say what


class Presence:
    """Which sites are present: connected, heard of since they connected, and not silent for long.

    A restarted site is connected before it has registered; until then the server still has its old registration. A cut
    network does not end a connection for minutes, so silence decides; whatever a site sends counts, as its heartbeats
    wait behind what it uploads.
    """

    def __init__(self, cell: Cell, log: Callable[[str, str], None]) -> None:
        self._core = cell.core_cell
        self._log = log
        self._connected_at: dict[str, float] = {}
        self._heard_at: dict[str, float] = {}
        self._core.set_cell_connected_cb(self._note_connection)
        self._core.set_cell_disconnected_cb(lambda agent: log(agent.get_fqcn(), "is gone"))

    def _note_connection(self, agent: CellAgent) -> None:
        self._connected_at[agent.get_fqcn()] = time.time()
        self._log(agent.get_fqcn(), "is connected")

    def hear(self, name: str) -> None:
        """Note that something came from a site."""
        self._heard_at[name] = time.monotonic()

    def token(self, client: Client | None) -> str | None:
        """Identify a site's current registration, if it is present: it changes with each start."""
        if client is None or not self._core.is_cell_connected(client.get_fqcn()):
            return None
        known = client.last_connect_time >= self._connected_at.get(client.get_fqcn(), 0.0)
        silent = time.monotonic() - self._heard_at.get(client.get_fqcn(), -SILENCE) > SILENCE
        return str(client.token) if known and not silent else None


def guard_server(
    cell: Cell,
    clients: Callable[[], set[str]],
    hear: Callable[[str], None],
    may_send: Callable[[str, int], bool],
    note: Callable[[str, str], None] = lambda who, reason: None,
) -> None:
    """Let the federation's sites register and answer: no admin command, no job, no message to another site.

    `may_send`: whether a site may send so many bytes more in answer to what it was asked. `note`: writes down who was
    refused.
    """

    def refusal(message: Message) -> str:
        sender = message.get_prop(MessagePropKey.COMMON_NAME)
        if sender not in clients():
            return f"{sender!r:.80} is not in the federation"
        if message.get_header(MessageHeaderKey.ORIGIN) != sender:
            return "it uses another's name"
        hear(sender)
        if message.get_header(MessageHeaderKey.DESTINATION) != ROOT:
            return "it is for another site"
        if is_part(message) and not may_send(sender, size_of(message) + announced_by(message)):
            return f"{sender} sends more than it was asked for"
        return refusal_reason(message, TO_SERVER, REPLIES)

    guard(cell, refusal, note)


def guard_site(cell: Cell, admit: Callable[[Hashable, int, int], bool]) -> None:
    """Let the server ask and nothing else: no job, no command, no configuration.

    `admit`: whether so many bytes more of a stream may come, which is to have so many in all.
    """

    def refusal(message: Message) -> str:
        if message.get_header(MessageHeaderKey.ORIGIN) != ROOT:
            return "it does not come from the server"
        stream = message.get_header(StreamHeaderKey.STREAM_ID)
        if is_part(message) and not admit(stream, size_of(message), announced_by(message)):
            return "the server sends more than is taken here at once (largest_message_mb)"
        return refusal_reason(message, TO_SITE, REQUESTS)

    guard(cell, refusal)


def refusal_reason(message: Message, requests: set[tuple[str, str]], stream: tuple[str, str]) -> str:
    """Say why a message may not pass: requests must be of these kinds, and streams of plain bytes."""
    kind = (message.get_header(MessageHeaderKey.CHANNEL, ""), message.get_header(MessageHeaderKey.TOPIC, ""))
    if message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return ""  # an answer to a question of ours; FLARE drops those that it did not wait for
    if kind not in requests:
        return f"{kind!r:.80} may not be asked"
    if kind == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        return stream_refusal(message, stream)
    return ""


def is_part(message: Message) -> bool:
    """Whether a message is a part of a stream: all large answers come in parts."""
    kind = (message.get_header(MessageHeaderKey.CHANNEL, ""), message.get_header(MessageHeaderKey.TOPIC, ""))
    return kind == (STREAM_CHANNEL, STREAM_DATA_TOPIC)


def size_of(message: Message) -> int:
    """The bytes of a part, with some for what FLARE notes of it; what is not bytes is refused elsewhere."""
    payload = message.payload
    return NOTES + (len(payload) if isinstance(payload, (bytes, bytearray, memoryview)) else 0)


def announced_by(message: Message) -> int:
    """How long a stream is to be, by its first part: FLARE takes so much memory at once."""
    is_first = message.get_header(StreamHeaderKey.SEQUENCE) == 0
    return max(0, int(message.get_header(StreamHeaderKey.SIZE) or 0)) if is_first else 0


def stream_refusal(message: Message, stream: tuple[str, str]) -> str:
    """Say why a part of a stream may not pass: FLARE would build objects from streams that are not bytes."""
    about = (message.get_header(StreamHeaderKey.CHANNEL), message.get_header(StreamHeaderKey.TOPIC))
    if about != stream:
        return f"{about!r:.80} may not be sent"
    encoding = message.get_header(StreamHeaderKey.PAYLOAD_ENCODING)
    return "" if encoding in (Encoding.BYTES, Encoding.NONE) else f"{encoding!r:.80} is not an encoding of bytes"


def guard(
    cell: Cell, refusal: Callable[[Message], str], note: Callable[[str, str], None] = lambda who, reason: None
) -> None:
    """Check every message that arrives, including those to be passed on, before FLARE does anything with it."""

    warnings = RareWarnings()

    def look(message: Message) -> Message | None:
        try:
            # FLARE would connect there, though no such connections are allowed: that holds for listening alone.
            reason = "it names an address" if message.get_header(MessageHeaderKey.CONN_URL) else refusal(message)
        except Exception as error:
            reason = type(error).__name__
        if not reason:
            return None
        warnings.warn("a message was refused: %s", reason)
        with suppress(Exception):  # a full disk, or a message without a sender, is no reason to let it in
            note(str(message.get_prop(MessagePropKey.COMMON_NAME)), reason)
        return make_reply(ReturnCode.UNAUTHENTICATED, error="refused")

    cell.core_cell.add_incoming_filter(channel="*", topic="*", cb=look)


class RareWarnings:
    """Warnings that do not fill the log when somebody keeps trying."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}

    def warn(self, text: str, reason: str) -> None:
        """Log a reason, unless it was logged a moment ago."""
        if time.monotonic() - self._logged_at.get(reason, -PAUSE) < PAUSE:
            return
        if len(self._logged_at) >= MOST_REASONS:  # made-up reasons shall not fill the memory
            self._logged_at.clear()
        self._logged_at[reason] = time.monotonic()
        logger.warning(text, reason)


def note_server_connection(cell: Cell, note: Callable[[bool], None]) -> None:
    """Note at a site when the server comes and goes."""
    core = cell.core_cell
    core.set_cell_connected_cb(lambda agent: note(True))
    core.set_cell_disconnected_cb(lambda agent: note(False))


def reconnect_within(seconds: int) -> None:
    """Set how long a site waits at most before it tries to reach the server again; FLARE's default is a minute."""
    conn_manager.MAX_WAIT = seconds


def close_inner_port(cell: Cell) -> None:
    """Stop listening on the loopback for job processes, of which there are none, and free the port."""
    core = cell.core_cell
    if core.int_listener is None:
        return
    connector = core.communicator.conn_manager.connectors[core.int_listener.handle]
    core.communicator.remove_connector(core.int_listener.handle)
    core.int_listener = None
    if connector.driver.server is not None:
        connector.driver.server.server_close()


def remove_admin_commands(engine: Any) -> None:
    """Remove FLARE's commands at a site: they would deploy and start what the server sends."""
    engine.admin_agent.processors.clear()
