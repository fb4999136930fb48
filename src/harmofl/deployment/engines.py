"""What an engine provides, and the engines there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.errors import UsageError, unknown_name
from harmofl.federation.transports import Transport

ENGINES = {"flower": "flwr", "nvflare": "nvflare"}
"""From an engine to the package that it needs."""


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
