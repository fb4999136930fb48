"""Kits as `harmofl deploy init` makes them, with real keys, and without any engine's processes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harmofl.deployment import checking, commands, engines, provisioning
from harmofl.deployment.engines import Finding
from harmofl.deployment.flower.provisioning import provision
from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.errors import RunError

assert commands  # imported here, so that its late imports meet the patched modules

SITES = ["hospital-0", "hospital-1", "hospital-2"]


class Quiet:
    """An engine that makes Flower's keys, remembers what it was asked for, and starts nothing."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.findings = [Finding(True, "the engine is well")]
        self.fails = False
        self.away: set[str] = set()

    def provision(self, federation: Federation, folder: Path) -> None:
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

    def sites(self, minimum: int, timeout: float) -> list[str]:
        missing = [site for site in SITES if site in self.away]
        if len(SITES) - len(missing) < minimum:
            raise RunError(f"{len(SITES) - len(missing)} of {len(SITES)} sites are connected; missing: {missing}")
        return list(SITES)

    def check_server(self, kit: ServerKit) -> Iterator[Finding]:
        yield from self.findings

    def check_site(self, kit: SiteKit) -> Iterator[Finding]:
        yield from self.findings


def quiet_engine(patch: pytest.MonkeyPatch) -> Quiet:
    engine = Quiet()
    for module in (provisioning, checking, engines):
        patch.setattr(module, "find_engine", lambda name: engine)
    return engine


def make(out: Path, sites: list[str] = SITES, server: str = "localhost", **more: Any) -> Path:
    """Kits of synthetic sites."""
    more = {"tasks": ["histology"], "synthetic": True} | more
    engine = more.pop("engine", "flower")
    federation = provisioning.make_federation(engine, provisioning.Address.of(server), sites)
    provisioning.make_kits(federation, out, **more)
    return out


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
