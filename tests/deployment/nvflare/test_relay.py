"""Whole frames or none, whatever the other end does."""

import json
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harmofl.deployment.nvflare.relay import MAGIC, PREFIX, Relay, RelayError, listen, open_relay


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Relay]]:
    """A raw end and a relay."""
    raw, other = socket.socketpair()
    raw.settimeout(10)
    other.settimeout(10)
    relay = Relay(other, largest=1000)
    yield raw, relay
    raw.close()
    relay.close()


def frame(header: bytes, body: bytes = b"") -> bytes:
    return PREFIX.pack(MAGIC, len(header), len(body)) + header + body


def test_frames_arrive_as_they_were_sent() -> None:
    ends = socket.socketpair()
    one, other = Relay(ends[0]), Relay(ends[1])
    sent = [({"do": "ask", "id": 3}, bytes(range(256)) * 40_000), ({}, b""), ({"name": "Zürich"}, b"x")]
    thread = threading.Thread(target=lambda: [one.send(*each) for each in sent])
    thread.start()
    assert [other.receive() for _ in sent] == sent
    thread.join(timeout=10)
    one.close()
    other.close()


def test_frames_of_several_threads_do_not_mix() -> None:
    ends = socket.socketpair()
    one, other = Relay(ends[0]), Relay(ends[1])
    threads = [threading.Thread(target=one.send, args=({"n": n}, bytes([n]) * 100_000)) for n in range(8)]
    for thread in threads:
        thread.start()
    got = {header["n"]: body for header, body in (other.receive() for _ in threads)}
    assert got == {n: bytes([n]) * 100_000 for n in range(8)}
    for thread in threads:
        thread.join(timeout=10)
    one.close()
    other.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(16),
        frame(b"no json"),
        frame(b"[1, 2]"),
        frame(b"\xff\xfe"),
        struct.pack(">4sIQ", MAGIC, 2**31, 0),
        struct.pack(">4sIQ", MAGIC, 2, 1001),
    ],
    ids=["http", "zeros", "no json", "no object", "no text", "long header", "large body"],
)
def test_garbage_is_refused_before_it_takes_memory(pair: tuple[socket.socket, Relay], said: bytes) -> None:
    raw, relay = pair
    raw.sendall(said)
    with pytest.raises(RelayError):
        relay.receive()


@pytest.mark.parametrize("kept", [0, 5, PREFIX.size, PREFIX.size + 3, -1])
def test_half_a_frame_is_the_end(pair: tuple[socket.socket, Relay], kept: int) -> None:
    raw, relay = pair
    raw.sendall(frame(json.dumps({"a": 1}).encode(), b"body")[:kept])
    raw.close()
    with pytest.raises(EOFError):
        relay.receive()


def test_sending_to_an_end_that_is_gone_says_so(pair: tuple[socket.socket, Relay]) -> None:
    raw, relay = pair
    raw.close()
    with pytest.raises(BrokenPipeError):
        relay.send({}, bytes(1000))


def test_closing_wakes_a_waiting_receive() -> None:
    ends = socket.socketpair()
    one, other = Relay(ends[0]), Relay(ends[1])
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises((EOFError, OSError)):
            one.receive()
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    one.close()
    assert ended.wait(10)
    thread.join(timeout=10)
    other.close()


def test_only_the_owner_can_open_the_socket(tmp_path: Path) -> None:
    with listen(tmp_path / "relay.sock"):
        mode = (tmp_path / "relay.sock").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_a_socket_left_by_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    listen(path).close()
    with pytest.raises(ConnectionRefusedError):
        open_relay(path)
    with listen(path):
        open_relay(path).close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc here")
def test_a_deep_folder_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / ("long-name-" * 9) / ("longer-name-" * 9) / "relay.sock"
    with listen(path) as listener:
        listener.settimeout(10)
        client = open_relay(path)
        server, _ = listener.accept()
        client.send({"hello": 1})
        assert Relay(server).receive() == ({"hello": 1}, b"")
        client.close()
        server.close()


def test_nobody_listening_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_relay(tmp_path / "relay.sock")
