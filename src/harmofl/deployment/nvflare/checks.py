"""FLARE's own part of `harmofl deploy check`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from harmofl.deployment.engine import Finding
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.nvflare.names import ENGINE, relay_socket, workspace
from harmofl.deployment.nvflare.relay import open_relay
from harmofl.deployment.tls.address import Address
from harmofl.deployment.tls.checks import Credentials, check_credentials, check_port, check_way

SECONDS = 10.0
STARTUP = f"{ENGINE}/startup"
AUTHORITY = f"{STARTUP}/rootCA.pem"


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
