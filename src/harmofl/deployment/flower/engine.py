"""Flower as an engine of harmofl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from harmofl.deployment.engines import Engine, Finding
from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.federation.transports import Transport


class Flower:
    """Flower's TLS, node keys and messages; runs, rounds and models are ours. Each part is imported when needed."""

    def provision(self, federation: Federation, folder: Path) -> None:
        """Make certificates and keys for those who have none yet."""
        from harmofl.deployment.flower.provisioning import provision

        provision(federation, folder)

    def serve(self, kit: ServerKit) -> None:
        """Run a SuperLink until it is stopped."""
        from harmofl.deployment.flower.server import serve

        serve(kit)

    def join(self, kit: SiteKit) -> None:
        """Run a SuperNode and answer its messages until stopped."""
        from harmofl.deployment.flower.site import join
        from harmofl.deployment.participant import Participant

        join(kit, Participant(kit).answer)

    def connect(self, kit: ServerKit) -> AbstractContextManager[Transport]:
        """Reach the sites through the SuperLink on this machine."""
        from harmofl.deployment.flower.transport import connected

        return connected(kit)

    def check_server(self, kit: ServerKit) -> Iterator[Finding]:
        """Its certificate and the sites' keys, and whether it runs."""
        from harmofl.deployment.flower.checks import check_server

        return check_server(kit)

    def check_site(self, kit: SiteKit) -> Iterator[Finding]:
        """Its key, and the way to the server."""
        from harmofl.deployment.flower.checks import check_site

        return check_site(kit)


engine: Engine = Flower()
