"""The way from a site to the server, step by step, and what blocks it, in words."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from harmofl.deployment.engine import Finding
from harmofl.deployment.tls.address import Address

SECONDS = 10.0
EXPIRED, NOT_YET = 10, 9
OTHER_NAME = (62, 64)
"""OpenSSL's codes for a certificate that has expired, is not valid yet, or is for another name or address."""
NEAREST_FIRST = (ConnectionRefusedError, TimeoutError, OSError)
"""Failures of a connection, those that came nearest to the server first."""


def reach(server: Address, authority: Path, at: str = "", seconds: float = SECONDS) -> Finding:
    """Look up the name, connect, and check that the server is the federation's; `at`: connect there instead."""
    host, where = server.host, str(server)
    try:
        addresses = socket.getaddrinfo(at or host, server.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        hint = f"is the name right, and does this machine's DNS know it? `getent hosts {host}` tries the same"
        return Finding(False, f"{host} has no address ({getattr(error, 'strerror', None) or error})", hint)
    connection = connect(where, [str(address[4][0]) for address in addresses], server.port, seconds)
    if isinstance(connection, Finding):
        return connection
    with connection:
        return shake_hands(where, host, connection, authority)


def connect(where: str, addresses: Sequence[str], port: int, seconds: float) -> socket.socket | Finding:
    """Connect to the first address that accepts, or say why there is none."""
    failures: list[tuple[str, OSError]] = []
    for address in dict.fromkeys(addresses):
        try:
            return socket.create_connection((address, port), seconds)
        except OSError as error:
            failures.append((address, error))
    address, reason = min(failures, key=lambda failure: distance(failure[1]))
    if isinstance(reason, ConnectionRefusedError):
        hint = "start the server, or correct `server` in federation.toml"
        return Finding(False, f"{where}: nothing listens there (connection refused by {address})", hint)
    if isinstance(reason, TimeoutError):
        hint = "a firewall drops the connection: allow this machine out to that port, and in at the server"
        return Finding(False, f"{where}: no answer from {address} within {seconds:.0f} s", hint)
    hint = "is this machine connected to the network that leads to the server?"
    return Finding(False, f"{where}: {address} cannot be reached ({reason.strerror or reason})", hint)


def distance(error: OSError) -> int:
    """How far from the server an attempt failed: the nearest failure is the one to report."""
    return next(place for place, kind in enumerate(NEAREST_FIRST) if isinstance(error, kind))


def shake_hands(where: str, host: str, connection: socket.socket, authority: Path) -> Finding:
    """Check that whoever answers is the federation's server."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        return Finding(False, f"{authority}: not a certificate ({error})", "copy the kit again")
    try:
        with context.wrap_socket(connection, server_hostname=host):
            return Finding(True, f"{where} can be reached and is the federation's server")
    except ssl.SSLCertVerificationError as error:
        return explain_refusal(where, host, error)
    except TimeoutError:
        what = f"{where}: something listens there but does not answer with TLS"
        return Finding(False, what, "another program has that port, or a proxy is in between")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        what = f"{where}: something listens there, but it does not speak TLS as the server does ({reason})"
        return Finding(False, what, "another program has that port, or a proxy is in between")


def explain_refusal(where: str, host: str, error: ssl.SSLCertVerificationError) -> Finding:
    """Say why the server's certificate is not accepted."""
    code = error.verify_code
    if code == EXPIRED:
        return Finding(False, f"{where}: the server's certificate has expired", "its operator must renew it")
    if code == NOT_YET:
        return Finding(False, f"{where}: the server's certificate is not valid yet", "check this machine's clock")
    if code in OTHER_NAME:
        hint = "use the name that the federation was made with (`server` in federation.toml)"
        return Finding(False, f"{where}: the server's certificate is not for {host}", hint)
    what = f"{where}: the server's certificate is not signed by this federation's authority ({error.verify_message})"
    return Finding(False, what, "stop here: it is another server, or someone in between pretends to be it")
