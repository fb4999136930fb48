"""FLARE's own part of `harmofl deploy check`: keys, certificates and the way to the server are looked at before."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from harmofl.deployment.engines import Finding
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.nvflare.names import relay_socket, workspace
from harmofl.deployment.relay import connect

SECONDS = 10.0


def check_server(kit: ServerKit) -> Iterator[Finding]:
    """Whether it runs; that it does not yet is no mistake."""
    if answers(kit):
        yield Finding(True, "NVIDIA FLARE's server is running")
    elif listens(kit.federation.port):
        what = f"port {kit.federation.port} is taken, but not by the NVIDIA FLARE server of this folder"
        yield Finding(False, what, "if it was started a moment ago, wait; else end the other program")
    else:
        yield Finding(True, "NVIDIA FLARE's server is not started yet")


def answers(kit: ServerKit) -> bool:
    """Whether FLARE's server of this kit takes runs."""
    try:
        connect(relay_socket(kit.folder)).close()
    except OSError:
        return False
    return True


def listens(port: int) -> bool:
    """Whether some program has the port on this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS).close()
    except OSError:
        return False
    return True


def check_site(kit: SiteKit) -> Iterator[Finding]:
    """Whether the server, which can be reached, lets this site in."""
    startup = workspace(kit.folder) / "startup"
    welcome = is_welcome(kit.federation.host, kit.federation.port, startup)
    what = f"the server {'takes' if welcome else 'refused'} this site's certificate"
    yield Finding(welcome, what, "" if welcome else "ask its operator for a new one (harmofl deploy renew)")


def is_welcome(host: str, port: int, startup: Path) -> bool:
    """Shake hands with the site's certificate; a server that refuses it says so only after the handshake."""
    try:
        context = ssl.create_default_context(cafile=startup / "rootCA.pem")
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection((host, port), timeout=SECONDS)
        with plain, context.wrap_socket(plain, server_hostname=host) as secure:
            return bool(secure.recv(1))
    except OSError:
        return False
