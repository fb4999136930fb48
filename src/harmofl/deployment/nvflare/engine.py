"""NVIDIA FLARE as an engine: its certificates, registration and messages; runs, rounds and models are ours."""

from __future__ import annotations

from harmofl.deployment.engine import Engine, deferred
from harmofl.deployment.enrollment import Enrollment
from harmofl.deployment.nvflare.names import ENGINE, client_name
from harmofl.deployment.tls.address import Address
from harmofl.errors import UsageError

HERE = "harmofl.deployment.nvflare"


def read_address(text: str) -> str:
    """Complete the server's address; FLARE takes a host apart at its colons."""
    address = Address.parse(text)
    if ":" in address.host:
        raise UsageError(f"--server {text!r}: NVIDIA FLARE needs a host name or an IPv4 address")
    return str(address)


engine = Engine(
    name="nvflare",
    title="NVIDIA FLARE",
    package="nvflare",
    extra="nvflare",
    credentials="certificates",
    provision=deferred(f"{HERE}.provisioning:provision"),
    serve=deferred(f"{HERE}.processes:serve"),
    join=deferred(f"{HERE}.processes:join"),
    connect=deferred(f"{HERE}.transport:connect"),
    read_address=read_address,
    port=lambda federation: Address.parse(federation.server).port,
    is_running=deferred(f"{HERE}.checks:is_running"),
    check_server=deferred(f"{HERE}.checks:check_server"),
    check_site=deferred(f"{HERE}.checks:check_site"),
    enrollment=Enrollment(
        algorithm="rsa",
        key=lambda site: f"{ENGINE}/startup/client.key",
        certificate=f"{ENGINE}/startup/client.crt",
        authority=f"{ENGINE}/startup/rootCA.pem",
        invite=deferred(f"{HERE}.joining:invite"),
        admit=deferred(f"{HERE}.joining:admit"),
        common_name=client_name,
    ),
    check_guest=deferred(f"{HERE}.checks:check_guest"),
    write_app=deferred(f"{HERE}.job:write_job"),
    expiring=lambda sites: [f"server/{ENGINE}", *(f"sites/{site}/{ENGINE}" for site in sites)],
)
