"""Flower as an engine: its TLS, node keys and messages; runs, rounds and models are ours.

Each part is imported when needed: nothing of Flower is loaded to list engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from harmofl.deployment.engine import Engine, Finding
from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.deployment.tls.address import Address, complete_address
from harmofl.federation.transports import Transport

PROXY = """
## Behind a reverse proxy

`nginx.conf` passes on what sites need and nothing else.
"""


def provision(federation: Federation, folder: Path) -> None:
    """Make certificates and keys for those who have none yet."""
    from harmofl.deployment.flower.provisioning import provision

    provision(federation, folder)


def serve(kit: ServerKit) -> None:
    """Run a SuperLink until it is stopped."""
    from harmofl.deployment.flower.server import serve

    serve(kit)


def join(kit: SiteKit) -> None:
    """Run a SuperNode and answer its messages until stopped."""
    from harmofl.deployment.flower.site import join
    from harmofl.deployment.participant import Participant

    join(kit, Participant(kit).answer)


def connect(kit: ServerKit) -> AbstractContextManager[Transport]:
    """Reach the sites through the SuperLink on this machine."""
    from harmofl.deployment.flower.transport import connect

    return connect(kit)


def is_running(kit: ServerKit) -> bool:
    """Whether the SuperLink of this kit answers."""
    from harmofl.deployment.flower.checks import is_running

    return is_running(kit)


def check_server(kit: ServerKit) -> Iterable[Finding]:
    """Its certificate, its port and the sites' keys."""
    from harmofl.deployment.flower.checks import check_server

    return check_server(kit)


def check_site(kit: SiteKit) -> Iterable[Finding]:
    """Its key, and the way to the server."""
    from harmofl.deployment.flower.checks import check_site

    return check_site(kit)


def server_files(sites: Sequence[str]) -> list[str]:
    """The sites' public keys."""
    return [f"keys/{site}.pub" for site in sites]


engine = Engine(
    name="flower",
    title="Flower",
    package="flwr",
    extra="flower",
    credentials="keys",
    provision=provision,
    serve=serve,
    join=join,
    connect=connect,
    read_address=complete_address,
    port=lambda federation: Address.parse(federation.server).port,
    is_running=is_running,
    check_server=check_server,
    check_site=check_site,
    server_files=server_files,
    expiring=lambda sites: ["server/tls"],
    server_notes=PROXY,
)
