"""The server's side: a SuperLink that only registered sites reach."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
from cryptography.exceptions import UnsupportedAlgorithm

from harmofl.deployment.flower.addresses import listening_address, local_address
from harmofl.deployment.flower.children import Child, prepare_process
from harmofl.deployment.flower.door import KEYS
from harmofl.deployment.flower.runtime.operator import Superlink, find_online, is_answering, node_key, register
from harmofl.deployment.kits import ServerKit
from harmofl.deployment.processes import keep_running, stoppable
from harmofl.deployment.status import note_status
from harmofl.deployment.tls.address import Address
from harmofl.errors import RunError, UsageError
from harmofl.files import PRIVATE, write_whole

logger = logging.getLogger(__name__)

STARTS_WITHIN = 60.0
LOOK_EVERY = 2.0
"""Seconds between two looks at who is in the federation."""


def serve(kit: ServerKit) -> None:
    """Run a SuperLink until we are stopped; one that ends by itself is started again."""
    prepare_process()
    listening, engine = listening_address(kit.federation), kit.folder / "engine"
    engine.mkdir(parents=True, exist_ok=True)
    write_whole(engine / "secret", secrets.token_bytes(32), PRIVATE)  # new each time: nobody needs the old one
    try:
        with stoppable():
            keep_running(lambda: run_once(kit, listening))
    finally:
        for name in ("address", "secret"):
            (engine / name).unlink(missing_ok=True)


def run_once(kit: ServerKit, listening: Address) -> str:
    """Start a SuperLink, let the sites in, and wait for its end; return the reason."""
    engine, keys = kit.folder / "engine", read_site_keys(kit)
    superlink = open_superlink(kit, local_address(listening))
    write_keys(kit.folder, keys)
    child = Child("superlink", superlink_arguments(kit, listening), engine)
    try:
        wait_until_up(child, superlink)
        register(superlink, keys)
        write_whole(engine / "address", superlink.address + "\n")
        logger.info("listening at %s for %s", kit.federation.server, ", ".join(keys) or "nobody yet")
        while not child.ended:
            keys = follow_members(superlink, kit.folder, keys)
            note_connected(superlink, kit.folder, keys)
            time.sleep(LOOK_EVERY)
        return f"Flower's SuperLink ended: {child.last_words()}"
    finally:
        note_status(kit.folder, [], "the server is not running")
        child.stop()


def follow_members(superlink: Superlink, folder: Path, known: dict[str, bytes]) -> dict[str, bytes]:
    """Let in who has joined meanwhile, and shut out who was revoked or removed; return who is let in now."""
    try:
        keys = read_site_keys(ServerKit.open(folder))
        if keys != known:
            write_keys(folder, keys)
            register(superlink, keys)
            for site in sorted(known.keys() | keys.keys()):
                if known.get(site) != keys.get(site):
                    logger.info("%s is %s", site, "let in from now on" if site in keys else "shut out from now on")
        return keys
    except (UsageError, OSError, httpx.HTTPError) as error:
        logger.warning("the sites stay as they were: %s", error)
        return known


def note_connected(superlink: Superlink, folder: Path, keys: dict[str, bytes]) -> None:
    """Let the health endpoint know who is there."""
    try:
        online = find_online(superlink)
    except httpx.HTTPError:
        return
    note_status(folder, [site for site, key in keys.items() if key in online])


def write_keys(folder: Path, keys: Mapping[str, bytes]) -> None:
    """Tell the SuperLink's door whom it lets in."""
    write_whole(folder / "engine" / KEYS, b"".join(keys.values()))


def wait_until_up(child: Child, superlink: Superlink) -> None:
    """Return once it answers; a SuperLink that cannot even start is an error, as trying again would not help."""
    deadline = time.monotonic() + STARTS_WITHIN
    while not is_up(superlink):
        if child.ended or time.monotonic() > deadline:
            raise RunError(f"Flower's SuperLink did not start: {child.last_words()}")
        time.sleep(0.1)


def is_up(superlink: Superlink) -> bool:
    """Whether it answers, and to our secret: another server on the same port would not."""
    try:
        return is_answering(superlink)
    except httpx.HTTPError:
        return False


def open_superlink(kit: ServerKit, address: str) -> Superlink:
    """Read what the operator needs to reach the SuperLink."""
    try:
        secret = (kit.folder / "engine" / "secret").read_bytes()
        authority = (kit.folder / "tls" / "ca.crt").read_bytes()
    except OSError as error:
        raise RunError(f"{error.filename}: {error.strerror}: is the server started (`harmofl deploy start`)?") from None
    return Superlink(address, authority, secret)


def superlink_arguments(kit: ServerKit, listening: Address) -> list[str]:
    """Ours, then Flower's. All is kept in memory: no site's update is written to the server's disk."""
    tls, secret = kit.folder / "tls", kit.folder / "engine" / "secret"
    return [
        str(secret),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--ssl-ca-certfile", str(tls / "ca.crt")),
        *("--ssl-certfile", str(tls / "server.crt"), "--ssl-keyfile", str(tls / "server.key")),
        *("--host", listening.host, "--port", str(listening.port)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


def read_site_keys(kit: ServerKit) -> dict[str, bytes]:
    """Read the public keys of the federation's sites, as Flower stores them; a site may not have made one yet."""
    paths = {site: kit.folder / "keys" / f"{site}.pub" for site in sorted(kit.federation.sites)}
    return {site: read_site_key(path) for site, path in paths.items() if path.exists()}


def read_site_key(path: Path) -> bytes:
    """Read one site's public key."""
    try:
        return node_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path}: not a site's public key: {error}") from None
