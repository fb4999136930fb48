"""Runs the server's application behind its door: uvicorn, which reads only of connections that have shown a key."""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import load_der_x509_certificate
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from harmofl.deployment.flower.door import HANDSHAKE, Door
from harmofl.deployment.flower.guard import PEER
from harmofl.deployment.flower.identities import public_text


def peer_key(transport: asyncio.BaseTransport) -> bytes | None:
    """The key that the other end of a TLS connection has shown, as Flower writes it; None if it was not asked."""
    connection = transport.get_extra_info("ssl_object")
    shown = connection.getpeercert(binary_form=True) if connection else None
    if not shown:
        return None
    key = load_der_x509_certificate(shown).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return public_text(key)


def protocol_of(door: Door) -> type[Any]:
    """uvicorn's protocol, which tells the application whose connection a request came by."""

    class Known(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        app_state: dict[str, Any]

        def connection_made(self, transport: Any) -> None:
            door.admitted.add(transport.get_extra_info("peername")[:2])
            self.app_state = {**self.app_state, PEER: peer_key(transport)}
            super().connection_made(transport)

    return Known


class Server(uvicorn.Server):
    """A server that waits for a stranger's key for seconds, not for a minute."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        within = {"ssl_handshake_timeout": HANDSHAKE} if self.config.ssl else {}
        loop.create_server = functools.partial(loop.create_server, **within)  # type: ignore[method-assign]
        await super().startup(sockets)


def serve(config: uvicorn.Config, door: Door) -> None:
    """Serve until stopped."""
    Server(config).run(sockets=[door])
