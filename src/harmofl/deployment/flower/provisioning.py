"""The engine's part of the kits: an authority, the server's certificate, and a key per site."""

from __future__ import annotations

from pathlib import Path

from harmofl.deployment.certificates import issue_server_certificate, make_authority, make_site_key
from harmofl.deployment.kits import Federation


def provision(federation: Federation, folder: Path) -> None:
    """Make what is missing; what is there stays, so that a site can be added later."""
    authority, server = folder / "authority", folder / "server"
    if not (server / "tls" / "server.crt").exists():
        if not (authority / "ca.crt").exists():
            make_authority(authority)
        issue_server_certificate(authority, [federation.host], server / "tls")
    for site in federation.sites:
        if not (server / "keys" / f"{site}.pub").exists():
            add_site(folder, site)


def add_site(folder: Path, site: str) -> None:
    """Make one site's key; its private half goes into that site's folder and nowhere else."""
    own, server = folder / "sites" / site, folder / "server"
    make_site_key(own / "keys", site)
    for part in (own / "tls", server / "keys"):
        part.mkdir(parents=True, exist_ok=True)
    (own / "keys" / f"{site}.pub").replace(server / "keys" / f"{site}.pub")
    (own / "tls" / "ca.crt").write_bytes((server / "tls" / "ca.crt").read_bytes())
