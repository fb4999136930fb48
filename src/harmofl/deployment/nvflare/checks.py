"""FLARE's own part of `harmofl deploy check`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harmofl.deployment.engine import Finding
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.nvflare.names import ENGINE, EXECUTOR, relay_socket, workspace
from harmofl.deployment.nvflare.relay import open_relay
from harmofl.deployment.tls.address import Address
from harmofl.deployment.tls.checks import Credentials, check_credentials, check_port, check_way
from harmofl.documents import read_json

SECONDS = 10.0
STARTUP = f"{ENGINE}/startup"
AUTHORITY = f"{STARTUP}/rootCA.pem"
RESOURCES = ("resources.json", "resources.json.default")
"""Where a party says what a job may name; FLARE reads the first that is there."""


def check_server(kit: ServerKit) -> Iterator[Finding]:
    """Whether the server could listen."""
    own = Credentials(key=f"{STARTUP}/server.key", authority=AUTHORITY)
    yield from check_credentials(kit.folder, own)
    yield check_port(kit, own)


def is_running(kit: ServerKit) -> bool:
    """Whether FLARE's server of this kit takes runs."""
    try:
        open_relay(relay_socket(kit.folder)).close()
    except OSError:
        return False
    return True


def check_site(kit: SiteKit) -> Iterator[Finding]:
    """Whether the server can be reached, and lets this site in."""
    own = Credentials(key=f"{STARTUP}/client.key", authority=AUTHORITY)
    yield from check_credentials(kit.folder, own)
    way = check_way(kit, own)
    yield way
    if not way.ok:
        return
    welcome = is_welcome(Address.parse(kit.federation.server), workspace(kit.folder) / "startup")
    what = f"the server {'accepts' if welcome else 'refused'} this site's certificate"
    yield Finding(welcome, what, "" if welcome else "ask its operator for a new one (harmofl deploy renew)")


def check_guest(kit: SiteKit) -> Iterator[Finding]:
    """Whether a client of FLARE's that others provisioned lets a job of harmofl's run, and keeps this site's log here.

    The site's folder is `local/harmofl` in the client's workspace; anywhere else, nothing is known of the client.
    """
    local = kit.folder.parent
    if not (local.name == "local" and (local.parent / "startup" / "fed_client.json").exists()):
        return
    path = next((place for place in (local / name for name in RESOURCES) if place.exists()), local / RESOURCES[0])
    try:
        resources = read_json(path)
        if not isinstance(resources, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        yield Finding(False, f"{path}: cannot be read ({error})")
        return
    yield check_allowed(path, resources)
    yield check_streaming(path, resources)


def check_allowed(path: Path, resources: Mapping[str, Any]) -> Finding:
    """Whether a job may name our executor."""
    entries = [entry for entry in resources.get("class_allow_list", []) if isinstance(entry, str)]
    allowed = resources.get("class_list_enforcement_mode") == "warn" or any(
        entry in ("*", EXECUTOR) or EXECUTOR.startswith(entry.rstrip(".") + ".") for entry in entries
    )
    what = f"{path.name}: class_allow_list {'names' if allowed else 'does not name'} harmofl's executor"
    hint = f'in a copy of it named {RESOURCES[0]}, add "{EXECUTOR}" to class_allow_list, and start the client again'
    return Finding(allowed, what, "" if allowed else hint)


def check_streaming(path: Path, resources: Mapping[str, Any]) -> Finding:
    """Whether this site's log of a job, which may name files, stays here."""
    streams = bool(resources.get("allow_log_streaming", True))
    what = f"{path.name}: the log of a job {'is sent to the server' if streams else 'stays here'}"
    return Finding(True, what, 'it may name files: set "allow_log_streaming": false' if streams else "")


def is_welcome(server: Address, startup: Path) -> bool:
    """Shake hands with the site's certificate; a server that refuses it says so only after the handshake."""
    try:
        context = ssl.create_default_context(cafile=startup / "rootCA.pem")
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection((server.host, server.port), timeout=SECONDS)
        with plain, context.wrap_socket(plain, server_hostname=server.host) as secure:
            return bool(secure.recv(1))
    except OSError:
        return False
