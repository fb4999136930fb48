"""Where the SuperLink listens, and how its own machine reaches it."""

from __future__ import annotations

import os
import time

from harmofl.deployment.kits import Federation, ServerKit
from harmofl.errors import RunError, UsageError

LISTEN = "HARMOFL_LISTEN"
"""The variable for a server behind a reverse proxy: `127.0.0.1:8444` instead of the federation's port everywhere."""
EVERYWHERE = "0.0.0.0"


def joined(host: str, port: int | str) -> str:
    """As in an address of the web."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def of_server(federation: Federation) -> str:
    """As sites reach it."""
    return joined(federation.host, federation.port)


def listening(federation: Federation) -> tuple[str, int]:
    """Where the SuperLink is to listen."""
    wanted = os.environ.get(LISTEN) or joined(EVERYWHERE, federation.port)
    host, _, port = wanted.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"{LISTEN} = {wanted!r}: must be HOST:PORT")
    return host.strip("[]"), int(port)


def on_this_machine(host: str, port: int) -> str:
    """How to reach what listens there, from here."""
    return joined({EVERYWHERE: "127.0.0.1", "::": "::1"}.get(host, host), port)


def of_running(kit: ServerKit, patience: float = 0.0) -> str:
    """Where the running SuperLink wrote that it listens; `patience`: seconds for one that is just being started."""
    path, deadline = kit.folder / "engine" / "address", time.monotonic() + patience
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        raise RunError(f"{kit.folder}: the server is not running: start it with `harmofl deploy start`") from None
