"""Frames between two processes of one machine: a little JSON and bytes, over a socket that only its owner can open.

`harmofl deploy run` reaches FLARE's server, a process of its own, in this way. Nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harmofl.documents import parse_json

Header = Mapping[str, Any]

MAGIC = b"hfl1"
PREFIX = struct.Struct(">4sIQ")
LONGEST_HEADER = 2**20
LARGEST_BODY = 2**32
LONGEST_ADDRESS = 100
"""Of a unix socket; systems differ a little, and all refuse more than 108 bytes."""


class RelayError(Exception):
    """What arrived is not a frame."""


class Relay:
    """One end of a connection: whole frames in, whole frames out, from any thread."""

    def __init__(self, connection: socket.socket, largest: int = LARGEST_BODY) -> None:
        self._socket = connection
        self._largest = largest
        self._sending = threading.Lock()

    def send(self, header: Header, body: bytes | bytearray | memoryview = b"") -> None:
        """Send one frame; OSError if the other end is gone."""
        text = json.dumps(header).encode()
        with self._sending:
            self._socket.sendall(PREFIX.pack(MAGIC, len(text), len(body)) + text)
            if body:
                self._socket.sendall(body)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for one frame; EOFError if the other end is gone, in the middle of a frame too."""
        magic, header_length, body_length = PREFIX.unpack(self._read(PREFIX.size))
        if magic != MAGIC or header_length > LONGEST_HEADER or body_length > self._largest:
            raise RelayError("not a frame, or too large a one")
        try:
            header = parse_json(self._read(header_length))
        except ValueError:
            raise RelayError("a frame's header is not JSON") from None
        if not isinstance(header, dict):
            raise RelayError("a frame's header is not an object")
        return header, self._read(body_length)

    def _read(self, length: int) -> bytes:
        parts = bytearray(length)
        view, done = memoryview(parts), 0
        while done < length:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise EOFError("the other end is gone")
            done += count
        return bytes(parts)

    def close(self) -> None:
        """Let the other end and a waiting `receive` know."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def open_relay(path: Path, largest: int = LARGEST_BODY) -> Relay:
    """Open the other process's socket; OSError if nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return Relay(connection, largest)


def listen(path: Path) -> socket.socket:
    """A socket that only this user can open; one that a killed process left is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # from the first moment on, not after it
    try:
        with socket_address(path) as address:
            listener.bind(address)
    finally:
        os.umask(before)
    listener.listen(4)
    return listener


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """The path as a socket's address; too long a one is reached through its open folder, where there is /proc."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS or not Path("/proc/self/fd").exists():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
