"""NVIDIA FLARE as an engine of harmofl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from harmofl.deployment.engines import Engine, Finding
from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.deployment.nvflare import checks
from harmofl.deployment.nvflare.names import client_name
from harmofl.deployment.nvflare.processes import keep_running
from harmofl.deployment.nvflare.transport import connected
from harmofl.federation.transports import Transport


class NvidiaFlare:
    """FLARE's certificates, registration and messages; runs, rounds and models are ours."""

    def provision(self, federation: Federation, folder: Path) -> None:
        """Make certificates and configuration for those who have none yet."""
        from harmofl.deployment.nvflare.provisioning import provision  # FLARE's provisioner takes a while to import

        provision(federation, folder)

    def serve(self, kit: ServerKit) -> None:
        """Run FLARE's server until it is stopped."""
        with kit.served():
            keep_running(kit.folder)

    def join(self, kit: SiteKit) -> None:
        """Run FLARE's client until it is stopped."""
        keep_running(kit.folder, client_name(kit.name))

    def connect(self, kit: ServerKit) -> AbstractContextManager[Transport]:
        """Reach the sites through FLARE's server on this machine."""
        return connected(kit.folder, kit.federation.sites)

    def check_server(self, kit: ServerKit) -> Iterator[Finding]:
        """Its certificate, and whether it runs."""
        return checks.check_server(kit)

    def check_site(self, kit: SiteKit) -> Iterator[Finding]:
        """Its certificate, and whether the server takes it."""
        return checks.check_site(kit)


engine: Engine = NvidiaFlare()
