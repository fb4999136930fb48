"""Flower's part of the kits: an authority, the server's certificate, a key per site, and a rule for a reverse proxy."""

from __future__ import annotations

from pathlib import Path

from harmofl.deployment.flower.guard import FLEET
from harmofl.deployment.kits import Federation
from harmofl.deployment.papers import render
from harmofl.deployment.tls.address import Address
from harmofl.deployment.tls.certificates import issue_server_certificate, make_authority, make_site_key
from harmofl.files import write_whole

NGINX_TLS = "/etc/nginx/harmofl"


def provision(federation: Federation, folder: Path) -> None:
    """Make what is missing; what is there stays, so that a site can be added later."""
    address, authority, server = Address.parse(federation.server), folder / "authority", folder / "server"
    if not (server / "tls" / "server.crt").exists():
        if not (authority / "ca.crt").exists():
            make_authority(authority)
        issue_server_certificate(authority, [address.host], server / "tls")
    if not (server / "nginx.conf").exists():
        write_whole(server / "nginx.conf", proxy_rule(address, neighbour(address.port)))
    for site in federation.sites:
        if not (server / "keys" / f"{site}.pub").exists():
            add_site(folder, site)


def neighbour(port: int) -> int:
    """Where the server listens behind a proxy that has its port."""
    return port + 1 if port < 65535 else port - 1


def proxy_rule(address: Address, inner_port: int, tls: str = NGINX_TLS) -> str:
    """The configuration of nginx in front of a server, with the certificates in the folder `tls`."""
    words = {"host": address.host, "port": address.port, "inner_port": inner_port, "tls": tls}
    return render("flower/nginx.conf", **words, fleet=FLEET.pattern)


def add_site(folder: Path, site: str) -> None:
    """Make one site's key; its private half goes into that site's folder and nowhere else."""
    own, server = folder / "sites" / site, folder / "server"
    make_site_key(own / "keys", site)
    for part in (own / "tls", server / "keys"):
        part.mkdir(parents=True, exist_ok=True)
    (own / "keys" / f"{site}.pub").replace(server / "keys" / f"{site}.pub")
    (own / "tls" / "ca.crt").write_bytes((server / "tls" / "ca.crt").read_bytes())
