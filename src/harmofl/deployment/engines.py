"""What an engine provides, and the engines there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.errors import RunError, UsageError, unknown_name
from harmofl.federation.transports import Transport

ENGINES = {"flower": "flwr", "nvflare": "nvflare"}
"""From an engine to the package that it needs."""


LARGEST_REPLY = 2**31
NOT_CONNECTED = "not connected"
TOO_LATE = "no answer within federation.timeout"
LOOK_EVERY = 0.25


@dataclass(frozen=True)
class Finding:
    """One thing that `harmofl deploy check` looked at; `hint`: what to do if it is not well."""

    ok: bool
    what: str
    hint: str = ""


class Engine(Protocol):
    """Brings bytes from the server to sites and back; it knows nothing of what they say."""

    def provision(self, federation: Federation, folder: Path) -> None:
        """Add the engine's part to `folder/server` and `folder/sites/NAME`."""

    def serve(self, kit: ServerKit) -> None:
        """Run the engine's server until it is stopped."""

    def join(self, kit: SiteKit) -> None:
        """Run the engine's node and answer requests until it is stopped."""

    def connect(self, kit: ServerKit) -> AbstractContextManager[Transport]:
        """Reach the sites from the server's machine, for as long as a run lasts."""

    def check_server(self, kit: ServerKit) -> Iterator[Finding]:
        """What of the engine's at the server is as it should be."""

    def check_site(self, kit: SiteKit) -> Iterator[Finding]:
        """What of the engine's at a site is as it should be, the way to the server included."""


def find_engine(name: str) -> Engine:
    """Return the engine of that name, if what it needs is installed."""
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if find_spec(ENGINES[name]) is None:
        raise UsageError(f"engine {name!r} is not installed: pip install 'harmofl[{name}]'")
    engine: Engine = import_module(f"harmofl.deployment.{name}.engine").engine
    return engine


def wait_for_sites(
    names: Collection[str], connected: Callable[[], Collection[str]], minimum: int, timeout: float
) -> list[str]:
    """All sites of a federation, as soon as so many are connected, or an error that names those that are not."""
    deadline = time.monotonic() + timeout
    while minimum > 0 and len(here := connected()) < minimum:
        if time.monotonic() >= deadline:
            missing = ", ".join(sorted(set(names) - set(here)))
            raise RunError(f"{len(here)} of {len(names)} sites are connected; missing: {missing}")
        time.sleep(LOOK_EVERY)
    return sorted(names)
