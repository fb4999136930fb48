"""The server's door, with real TLS on this machine: who has a known key comes in, and nothing is read of a stranger."""

import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="harmofl[flower] is not installed")

import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec

from harmofl.deployment.flower import door as module
from harmofl.deployment.flower import guard, serving
from harmofl.deployment.flower.addresses import LISTEN, listening_address
from harmofl.deployment.flower.door import Door, Keys, server_context
from harmofl.deployment.flower.guard import Guard
from harmofl.deployment.flower.identities import client_context, public_text
from harmofl.deployment.flower.serving import Server, protocol_of
from harmofl.deployment.kits import Federation
from harmofl.deployment.tls.certificates import issue_server_certificate, make_authority, new_key
from harmofl.files import write_whole

OPERATOR, SITE, OTHER, STRANGER = new_key(), new_key(), new_key(), new_key()
HOST = "127.0.0.1"


class House:
    """What stands behind the door, and what it has seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.bodies: list[bytes] = []
        self.noted: list[str] = []
        make_authority(folder / "authority")
        issue_server_certificate(folder / "authority", [HOST], folder / "tls")
        self.let_in(SITE, OTHER)
        self.door = Door(HOST, 0, lambda who, reason: self.noted.append(reason))
        keys, tls = Keys(folder / "sites.pem", OPERATOR.public_key()), folder / "tls"
        config = uvicorn.Config(
            Guard(self.answer, b"secret", lambda: keys.known),
            loop="asyncio",
            http=protocol_of(self.door),
            ssl_context_factory=lambda config, default: server_context(keys, tls / "server.crt", tls / "server.key"),
            log_config=None,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self.server = Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.door]})

    def let_in(self, *keys: ec.EllipticCurvePrivateKey) -> None:
        write_whole(self.folder / "sites.pem", b"".join(public_text(key.public_key()) for key in keys))

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests.append(scope["path"])
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            self.bodies.append(message.get("body", b""))
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    def connect(self, key: ec.EllipticCurvePrivateKey | None) -> ssl.SSLSocket:
        authority = (self.folder / "tls" / "ca.crt").read_bytes()
        context = (
            ssl.create_default_context(cadata=authority.decode()) if key is None else client_context(authority, key)
        )
        return context.wrap_socket(self.call(), server_hostname=HOST)

    def call(self) -> socket.socket:
        return socket.create_connection(self.door.getsockname(), 5)

    def ask(self, key: ec.EllipticCurvePrivateKey | None, body: bytes = b"", length: int | None = None) -> str:
        """The first line of the answer, or that the connection was closed without one."""
        shown = b64encode(public_text((key or STRANGER).public_key())).decode()
        head = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: {HOST}\r\nFlwr-Public-Key: {shown}\r\n"
        try:
            with self.connect(key) as connection:
                connection.sendall(f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode())
                connection.sendall(body)
                return connection.recv(1000).decode().partition("\r\n")[0] or "closed"
        except (ssl.SSLError, ConnectionError):
            return "closed"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    house.thread.start()
    deadline = time.monotonic() + 10
    while not house.server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield house
    house.server.should_exit = True
    house.thread.join(10)
    house.door.close()


def eventually(happened: Any, seconds: float = 8) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def test_known_keys_come_in(house: House) -> None:
    assert house.ask(SITE, b"x" * 1000) == "HTTP/1.1 200 OK"
    assert house.ask(OTHER) == "HTTP/1.1 200 OK"
    assert house.ask(OPERATOR) == "HTTP/1.1 200 OK"
    assert b"".join(house.bodies) == b"x" * 1000


@pytest.mark.parametrize("key", [STRANGER, None], ids=["another key", "no key"])
def test_nothing_is_read_of_a_stranger(house: House, key: ec.EllipticCurvePrivateKey | None) -> None:
    assert house.ask(key, b"x" * 2**20) == "closed"
    assert house.requests == []
    eventually(lambda: "no key that is known here" in house.noted)


def test_a_session_of_before_is_not_taken_up_again(house: House) -> None:
    """TLS 1.2 would, without asking for a key; in TLS 1.3 there is no ticket for it."""
    context = client_context((house.folder / "tls" / "ca.crt").read_bytes(), SITE)
    with context.wrap_socket(house.call(), server_hostname=HOST) as connection:
        assert connection.version() == "TLSv1.3"
        assert not (connection.session and connection.session.has_ticket)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        context.wrap_socket(house.call(), server_hostname=HOST)


def test_keys_count_from_the_moment_they_are_written(house: House) -> None:
    house.let_in(SITE, STRANGER)
    assert house.ask(STRANGER) == "HTTP/1.1 200 OK"
    assert house.ask(OTHER) == "closed"
    house.let_in(SITE)
    assert house.ask(STRANGER) == "closed"
    assert house.ask(SITE) == "HTTP/1.1 200 OK"


def test_a_connection_that_is_open_ends_with_its_key(house: House) -> None:
    """Whoever is shut out cannot go on with an old connection."""
    request = b"POST /v1/fleet/x HTTP/1.1\r\nHost: x\r\nFlwr-Public-Key: %s\r\nContent-Length: 0\r\n\r\n"
    request %= b64encode(public_text(OTHER.public_key()))
    with house.connect(OTHER) as connection:
        connection.sendall(request)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        house.let_in(SITE)
        connection.sendall(request)
        assert connection.recv(1000).startswith(b"HTTP/1.1 401")


def test_the_server_is_the_federations(house: House, tmp_path: Path) -> None:
    make_authority(tmp_path / "another")
    context = client_context((tmp_path / "another" / "ca.crt").read_bytes(), SITE)
    with pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(house.call(), server_hostname=HOST)


def test_who_shows_no_key_in_time_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HANDSHAKE", 0.3)
    house = House(tmp_path)
    house.thread.start()
    eventually(lambda: house.server.started)
    try:
        idle = [house.call() for _ in range(20)]
        assert [connection.recv(1) for connection in idle] == [b""] * 20
        eventually(lambda: house.noted == ["no key that is known here"] * 20)
    finally:
        for connection in idle:
            connection.close()
        house.server.should_exit = True
        house.thread.join(10)
        house.door.close()


def test_one_address_has_so_many_connections(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FROM_ONE", 5)
    first = [house.connect(SITE) for _ in range(5)]
    assert house.ask(SITE) == "closed"
    assert house.noted == ["too many connections"]
    for connection in first:
        connection.close()
    eventually(lambda: house.ask(SITE) == "HTTP/1.1 200 OK")


def test_one_address_makes_so_many_in_a_second(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3.0)
    monkeypatch.setattr(module, "PER_SECOND", 2.0)
    assert [house.ask(SITE) for _ in range(3)] == ["HTTP/1.1 200 OK"] * 3
    eventually(lambda: house.ask(SITE) == "closed", seconds=3)
    assert "too many new connections" in house.noted
    time.sleep(0.6)
    assert house.ask(SITE) == "HTTP/1.1 200 OK"


def test_a_body_reaches_the_application_in_one_piece(house: House) -> None:
    body = bytes(range(256)) * 4 * 2**10  # as large as a fifth of a message's part, many times a read's
    assert house.ask(SITE, body) == "HTTP/1.1 200 OK"
    assert house.bodies == [body]


def test_a_body_that_does_not_come_is_not_waited_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "READ_WITHIN", 0.3)
    started = time.monotonic()
    assert not house.ask(SITE, b"x", length=1000).startswith("HTTP/1.1 200")
    assert time.monotonic() - started < 4


@pytest.mark.parametrize(
    ("server", "listens"),
    [
        ("localhost:9443", "127.0.0.1:9443"),
        ("127.0.0.5:9443", "127.0.0.5:9443"),
        ("[::1]:9443", "[::1]:9443"),
        ("fl.example.org:9443", "0.0.0.0:9443"),
        ("10.0.0.1:9443", "0.0.0.0:9443"),
    ],
)
def test_loopback_means_loopback(server: str, listens: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LISTEN, raising=False)
    assert str(listening_address(Federation(engine="flower", server=server, sites=["A"]))) == listens
