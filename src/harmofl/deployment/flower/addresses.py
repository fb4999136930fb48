"""Where the SuperLink listens, and how its own machine reaches it."""

from __future__ import annotations

import ipaddress
import os
import time

from harmofl.deployment.kits import Federation, ServerKit
from harmofl.deployment.tls.address import Address
from harmofl.errors import RunError, UsageError

LISTEN = "HARMOFL_LISTEN"
"""The variable for a server behind a reverse proxy: `127.0.0.1:8444` instead of the federation's port everywhere."""
EVERYWHERE = "0.0.0.0"
LOOPBACK = {EVERYWHERE: "127.0.0.1", "::": "::1"}


def listening_address(federation: Federation) -> Address:
    """Where the SuperLink is to listen: everywhere, unless sites reach it on its own machine only."""
    wanted = os.environ.get(LISTEN)
    if not wanted:
        server = Address.parse(federation.server)
        return Address(own_machine(server.host) or EVERYWHERE, server.port)
    host, _, port = wanted.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"{LISTEN} = {wanted!r}: must be HOST:PORT")
    return Address(host.strip("[]"), int(port))


def own_machine(host: str) -> str:
    """The loopback address that a host means; empty if it is another one."""
    if host.lower() == "localhost":
        return LOOPBACK[EVERYWHERE]
    try:
        return host if ipaddress.ip_address(host).is_loopback else ""
    except ValueError:
        return ""


def is_behind_proxy() -> bool:
    """Whether a reverse proxy stands in front, which then checks connections."""
    return bool(os.environ.get(LISTEN))


def local_address(listening: Address) -> str:
    """How this machine reaches what listens there."""
    return str(Address(LOOPBACK.get(listening.host, listening.host), listening.port))


def running_address(kit: ServerKit, patience: float = 0.0) -> str:
    """Read where the running SuperLink listens; `patience`: seconds to wait for one that is just being started."""
    path, deadline = kit.folder / "engine" / "address", time.monotonic() + patience
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        raise RunError(f"{kit.folder}: the server is not running: start it with `harmofl deploy start`") from None
