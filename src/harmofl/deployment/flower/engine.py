"""Flower as an engine: its TLS, node keys and messages; runs, rounds and models are ours."""

from __future__ import annotations

from harmofl.deployment.engine import Engine, deferred
from harmofl.deployment.enrollment import Enrollment
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.tls.address import Address, complete_address

HERE = "harmofl.deployment.flower"
PROXY = """
## Behind a reverse proxy

`nginx.conf` forwards what sites need and nothing else.
"""


def join(kit: SiteKit) -> None:
    """Run a SuperNode and answer its messages until stopped."""
    from harmofl.deployment.flower.site import join
    from harmofl.deployment.participant import Participant

    join(kit, Participant(kit).answer)


engine = Engine(
    name="flower",
    title="Flower",
    package="flwr",
    extra="flower",
    credentials="keys",
    provision=deferred(f"{HERE}.provisioning:provision"),
    serve=deferred(f"{HERE}.server:serve"),
    join=join,
    connect=deferred(f"{HERE}.transport:connect"),
    read_address=complete_address,
    port=lambda federation: Address.parse(federation.server).port,
    is_running=deferred(f"{HERE}.checks:is_running"),
    check_server=deferred(f"{HERE}.checks:check_server"),
    check_site=deferred(f"{HERE}.checks:check_site"),
    enrollment=Enrollment(
        algorithm="ec",
        key=lambda site: f"keys/{site}",
        certificate="tls/site.crt",
        authority="tls/ca.crt",
        invite=deferred(f"{HERE}.joining:invite"),
        admit=deferred(f"{HERE}.joining:admit"),
    ),
    server_files=lambda sites: [f"keys/{site}.pub" for site in sites],
    expiring=lambda sites: ["server/tls"],
    server_notes=PROXY,
    write_app=deferred(f"{HERE}.app.writing:write_app"),
)
