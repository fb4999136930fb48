"""Keys, certificates and ports: what `harmofl deploy check` says of a party that speaks TLS."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harmofl.deployment.engine import Finding
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.tls.address import Address
from harmofl.deployment.tls.certificates import certificate_files, read_validity
from harmofl.deployment.tls.reaching import reach
from harmofl.errors import UsageError

SOON = 30
"""Days before its end at which a certificate should be renewed."""
LARGEST_KEY = 2**16
KEY_MARK = b"PRIVATE KEY"
OTHER_FOLDERS = ("runs", "cache", "state", "models", "log", "transfer", "home")
"""Folders of a kit that never hold a key, and may hold very many files."""


@dataclass(frozen=True)
class Credentials:
    """Where a party keeps what it proves itself with: paths below its kit."""

    key: str
    authority: str
    """The certificate that vouches for the server's; the folder around it holds all of the party's certificates."""


def check_credentials(folder: Path, own: Credentials) -> Iterator[Finding]:
    """Whether a party's keys are its own and its certificates are valid."""
    yield from check_keys(folder, own.key)
    yield from check_certificates(folder, (folder / own.authority).parent)


def check_keys(folder: Path, own: str) -> Iterator[Finding]:
    """Whether the one private key here is this party's, and readable by its owner alone."""
    names = [path.relative_to(folder).as_posix() for path in private_keys(folder)]
    for name in names:
        yield check_key(folder / name, name, own)
    if own not in names:
        hint = "at a site, `harmofl deploy join` makes it; else copy the kit again, keys included"
        yield Finding(False, f"no private key here that can be read ({own})", hint)


def check_key(path: Path, name: str, own: str) -> Finding:
    """Whether a private key belongs here, and to this user alone."""
    if name != own:
        hint = "delete it, and have a new kit made for the party it belongs to: its key is no longer secret"
        return Finding(False, f"{name} is a private key that is not this party's", hint)
    if path.stat().st_mode & 0o077:
        return Finding(False, f"{name}: other users can read this private key", f"chmod 600 {path}")
    if hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
        return Finding(False, f"{name} belongs to another user", "run this as the user that starts the party")
    return Finding(True, f"{name}: a private key that only its owner can read")


def private_keys(folder: Path) -> list[Path]:
    """All files of a kit that hold a private key, in whatever format."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in OTHER_FOLDERS]
        found += [Path(place) / name for name in files if holds_key(Path(place) / name)]
    return sorted(found)


def holds_key(path: Path) -> bool:
    """Whether a small file holds a private key."""
    try:
        return path.is_file() and path.stat().st_size < LARGEST_KEY and KEY_MARK in path.read_bytes()
    except OSError:
        return False


def check_certificates(folder: Path, place: Path) -> Iterator[Finding]:
    """How long the certificates in one folder of a kit are valid."""
    paths = certificate_files(place)
    if not paths:
        yield Finding(False, "no certificate here", "copy the kit again")
    for path in paths:
        yield check_certificate(path, path.relative_to(folder).as_posix())


def check_certificate(path: Path, name: str) -> Finding:
    """Whether a certificate is valid now, and for how long."""
    renew = "whoever made the kits can make a new one: harmofl deploy renew --kits DIR"
    try:
        validity = read_validity(path)
    except UsageError as error:
        return Finding(False, str(error), "copy the kit again")
    now = datetime.now(UTC)
    if now < validity.begins:
        return Finding(False, f"{name} is valid from {validity.begins:%Y-%m-%d} on", "check this machine's clock")
    if now > validity.ends:
        return Finding(False, f"{name} expired on {validity.ends:%Y-%m-%d}", renew)
    left = validity.days_left(now)
    return Finding(True, f"{name} is valid for {left} days", renew if left < SOON else "")


def check_port(kit: ServerKit, own: Credentials) -> Finding:
    """Whether the server has its port, or could have it."""
    address = Address.parse(kit.federation.server)
    if is_free(address.port):
        return Finding(True, f"port {address.port} is free for the server")
    if reach(address, kit.folder / own.authority, at="localhost", seconds=5).ok:
        return Finding(True, f"the server listens on port {address.port}")
    hint = "stop that program, or make the kits again with another port (--server HOST:PORT)"
    return Finding(False, f"port {address.port} is taken, and not by this federation's server", hint)


def is_free(port: int) -> bool:
    """Whether a server could listen on a port."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except PermissionError:  # a low port that only the service may have
            return trial.connect_ex(("127.0.0.1", port)) != 0
        except OSError:
            return False
        return True


def check_way(kit: SiteKit, own: Credentials) -> Finding:
    """Whether a site reaches the server, and the server is the federation's."""
    return reach(Address.parse(kit.federation.server), kit.folder / own.authority)
