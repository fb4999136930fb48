"""NVIDIA FLARE as an engine: its certificates, registration and messages; runs, rounds and models are ours.

Each part is imported when needed: nothing of FLARE is loaded to list engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from harmofl.deployment.engine import Engine, Finding
from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.deployment.nvflare.names import ENGINE, client_name
from harmofl.deployment.tls.address import Address
from harmofl.errors import UsageError
from harmofl.federation.transports import Transport


def read_address(text: str) -> str:
    """Complete the server's address; FLARE takes a host apart at its colons."""
    address = Address.parse(text)
    if ":" in address.host:
        raise UsageError(f"--server {text!r}: NVIDIA FLARE needs a host name or an IPv4 address")
    return str(address)


def provision(federation: Federation, folder: Path) -> None:
    """Make certificates and configuration for those who have none yet."""
    from harmofl.deployment.nvflare.provisioning import provision

    provision(federation, folder)


def serve(kit: ServerKit) -> None:
    """Run FLARE's server until it is stopped."""
    from harmofl.deployment.nvflare.processes import keep_running

    keep_running(kit.folder)


def join(kit: SiteKit) -> None:
    """Run FLARE's client until it is stopped."""
    from harmofl.deployment.nvflare.processes import keep_running

    keep_running(kit.folder, client_name(kit.name))


def connect(kit: ServerKit) -> AbstractContextManager[Transport]:
    """Reach the sites through FLARE's server on this machine."""
    from harmofl.deployment.nvflare.transport import connect

    return connect(kit.folder, kit.federation.sites)


def is_running(kit: ServerKit) -> bool:
    """Whether FLARE's server of this kit takes runs."""
    from harmofl.deployment.nvflare.checks import is_running

    return is_running(kit)


def check_server(kit: ServerKit) -> Iterable[Finding]:
    """Its certificate and its port."""
    from harmofl.deployment.nvflare.checks import check_server

    return check_server(kit)


def check_site(kit: SiteKit) -> Iterable[Finding]:
    """Its certificate, the way to the server, and whether the server accepts it."""
    from harmofl.deployment.nvflare.checks import check_site

    return check_site(kit)


def expiring(sites: Sequence[str]) -> list[str]:
    """Everyone's certificates lie in the engine's folder."""
    return [f"server/{ENGINE}", *(f"sites/{site}/{ENGINE}" for site in sites)]


engine = Engine(
    name="nvflare",
    title="NVIDIA FLARE",
    package="nvflare",
    extra="nvflare",
    credentials="certificates",
    provision=provision,
    serve=serve,
    join=join,
    connect=connect,
    read_address=read_address,
    port=lambda federation: Address.parse(federation.server).port,
    is_running=is_running,
    check_server=check_server,
    check_site=check_site,
    expiring=expiring,
)
