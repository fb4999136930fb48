"""The server's door: TLS connections of known keys come in, and not too many of them; of a stranger nothing is read."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from harmofl.deployment.flower.identities import make_anchor, public_text

KEYS = "sites.pem"
"""The file, beside the server's secret, with the public keys of the sites that are let in; it may change."""
KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----\n", re.DOTALL)

MOST, MOST_FROM_ONE = 512, 128
"""Connections at once: of all, and from one address."""
PER_SECOND, AT_ONCE = 20.0, 200.0
"""New connections from one address: as a rule, and in a burst."""
HANDSHAKE = 10.0
"""Seconds within which a connection must have shown its key."""
MOST_ADDRESSES = 10_000

Note = Callable[[str, str], None]


class Keys:
    """The keys that the server knows: the operator's, and those in a file, read again whenever it has changed."""

    def __init__(self, path: Path, operator: ec.EllipticCurvePublicKey) -> None:
        self._path = path
        self._operator = public_text(operator)
        self._seen: object = None
        self._known: dict[bytes, ec.EllipticCurvePublicKey] = {}
        self._anchors = b""

    @property
    def known(self) -> dict[bytes, ec.EllipticCurvePublicKey]:
        """The keys, by how Flower writes them."""
        self._read()
        return self._known

    @property
    def anchors(self) -> bytes:
        """The certificates to trust, as PEM."""
        self._read()
        return self._anchors

    def _read(self) -> None:
        try:
            status = self._path.stat()
            seen: object = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError:
            seen = "none"
        if seen == self._seen:
            return
        texts = [self._operator]
        with suppress(OSError):
            texts += KEY.findall(self._path.read_bytes())
        loaded = {text: load_pem_public_key(text) for text in texts}
        self._known = {text: key for text, key in loaded.items() if isinstance(key, ec.EllipticCurvePublicKey)}
        self._anchors = b"".join(map(make_anchor, self._known.values()))
        self._seen = seen


def server_context(keys: Keys, certificate: Path, private_key: Path) -> ssl.SSLContext:
    """TLS that asks everyone for a known key; keys that come or go count from the next connection on."""
    current: dict[bytes, ssl.SSLContext] = {}

    def make(anchors: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # before it, sessions are resumed in ways of their own
        context.load_cert_chain(certificate, private_key)
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # a session that is resumed would not be asked again
        if anchors:
            context.load_verify_locations(cadata=anchors.decode("ascii"))
        return context

    def choose(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        anchors = keys.anchors
        if anchors not in current:
            current.clear()
            current[anchors] = make(anchors)
        connection.context = current[anchors]

    context = make(b"")
    context.sni_callback = choose
    return context


class Door(socket.socket):
    """A listening socket that closes what is too much at once, before anything is read of it."""

    def __init__(self, host: str, port: int, note: Note = lambda who, reason: None) -> None:
        super().__init__(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind((host, port))
        self._note = note
        self._lock = Lock()
        self._open: dict[str, int] = {}
        self._allowed: dict[str, tuple[float, float]] = {}
        self.admitted: set[tuple[str, int]] = set()
        """The addresses and ports of connections that have shown a known key."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Take the next connection; raise what the event loop takes for one that has gone, if there are too many."""
        taken, address = super().accept()
        reason = self._refusal(address[0])
        if reason:
            taken.close()
            self.tell(address[0], reason)
            raise ConnectionAbortedError(reason)
        return Visitor(self, taken), address

    def tell(self, who: str, reason: str) -> None:
        """Have it written down that somebody was refused."""
        with suppress(OSError):
            self._note(who, reason)

    def _refusal(self, host: str) -> str:
        now = time.monotonic()
        with self._lock:
            if len(self._allowed) >= MOST_ADDRESSES:
                self._allowed.clear()
            left, since = self._allowed.get(host, (AT_ONCE, now))
            left = min(AT_ONCE, left + (now - since) * PER_SECOND)
            self._allowed[host] = (max(left - 1, 0.0), now)
            if left < 1:
                return "too many new connections"
            if self._open.get(host, 0) >= MOST_FROM_ONE or sum(self._open.values()) >= MOST:
                return "too many connections"
            self._open[host] = self._open.get(host, 0) + 1
        return ""

    def leave(self, address: tuple[str, int]) -> None:
        """A connection has ended; one that never showed a known key is written down."""
        with self._lock:
            left = self._open.get(address[0], 0) - 1
            if left > 0:
                self._open[address[0]] = left
            else:
                self._open.pop(address[0], None)
        if address in self.admitted:
            self.admitted.discard(address)
        else:
            self.tell(address[0], "no key that is known here")


class Visitor(socket.socket):
    """A connection that the door counts until it is closed."""

    def __init__(self, door: Door, taken: socket.socket) -> None:
        address = taken.getpeername()[:2]
        super().__init__(taken.family, taken.type, taken.proto, fileno=taken.detach())
        self._door: Door | None = door
        self._address = address

    def close(self) -> None:
        """Close it, once."""
        door, self._door = self._door, None
        super().close()
        if door is not None:
            door.leave(self._address)
