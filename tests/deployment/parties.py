"""Kits as `harmofl deploy init` makes them, with real keys, and without any engine's processes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harmofl import registry
from harmofl.deployment.engine import Finding
from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.deployment.provisioning import make_federation, make_kits
from harmofl.errors import RunError

SITES = ["hospital-0", "hospital-1", "hospital-2"]


class Quiet:
    """What an engine does that makes Flower's keys, remembers what it was asked for, and starts nothing."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.findings = [Finding(True, "the engine has nothing to complain about")]
        self.fails = False
        self.runs = False
        self.away: set[str] = set()

    def provision(self, federation: Federation, folder: Path) -> None:
        from harmofl.deployment.flower.provisioning import provision

        provision(federation, folder)
        if self.fails:
            raise RuntimeError("no")

    def serve(self, kit: ServerKit) -> None:
        self.started.append("server")

    def join(self, kit: SiteKit) -> None:
        self.started.append(kit.name)

    @contextmanager
    def connect(self, kit: ServerKit) -> Iterator["Quiet"]:
        yield self

    def is_running(self, kit: ServerKit) -> bool:
        return self.runs

    def sites(self, minimum: int, timeout: float) -> list[str]:
        missing = [site for site in SITES if site in self.away]
        if len(SITES) - len(missing) < minimum:
            raise RunError(f"{len(SITES) - len(missing)} of {len(SITES)} sites are connected; missing: {missing}")
        return list(SITES)

    def check(self, kit: ServerKit | SiteKit) -> list[Finding]:
        return self.findings


def quiet_engine(patch: pytest.MonkeyPatch) -> Quiet:
    """Let `flower` be an engine that starts nothing."""
    quiet = Quiet()
    own = {name: getattr(quiet, name) for name in ("provision", "serve", "join", "connect", "is_running")}
    engine = replace(registry.engines.find("flower"), **own, check_server=quiet.check, check_site=quiet.check)
    patch.setitem(registry.engines._entries, "flower", engine)
    return quiet


def make(out: Path, sites: list[str] = SITES, server: str = "localhost", **more: Any) -> Path:
    """Kits of synthetic sites."""
    more = {"tasks": ["histology"], "synthetic": True} | more
    engine = more.pop("engine", "flower")
    make_kits(make_federation(engine, server, sites), out, **more)
    return out


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
