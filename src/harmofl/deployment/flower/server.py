"""The server's side: a SuperLink that only registered sites reach."""

from __future__ import annotations

import logging
import secrets
import time
from pathlib import Path

import httpx

from harmofl.deployment.flower import addresses, runtime
from harmofl.deployment.flower.children import Child, settle_in
from harmofl.deployment.kits import ServerKit
from harmofl.deployment.processes import Pauses, stoppable
from harmofl.deployment.tls.address import Address
from harmofl.errors import RunError, UsageError
from harmofl.files import PRIVATE, write_whole

logger = logging.getLogger(__name__)

STARTS_WITHIN = 60.0


def serve(kit: ServerKit) -> None:
    """Run a SuperLink until we are stopped; one that ends by itself is started again."""
    settle_in()
    engine = kit.folder / "engine"
    engine.mkdir(parents=True, exist_ok=True)
    write_whole(engine / "secret", secrets.token_bytes(32), PRIVATE)  # new each time: nobody needs the old one
    try:
        with stoppable():
            keep_up(kit, engine / "secret")
    finally:
        for name in ("address", "secret"):
            (engine / name).unlink(missing_ok=True)


def keep_up(kit: ServerKit, secret: Path) -> None:
    """One SuperLink after the other."""
    address = addresses.listening(kit.federation)
    here, keys, pauses = addresses.on_this_machine(address), site_keys(kit), Pauses()
    while True:
        started = time.monotonic()
        run_once(kit, arguments(kit, secret, address), here, keys)
        time.sleep(pauses.next(time.monotonic() - started))


def run_once(kit: ServerKit, arguments: list[str], here: str, keys: dict[str, bytes]) -> None:
    """Start a SuperLink, let the sites in, and wait for its end."""
    engine = kit.folder / "engine"
    child = Child("superlink", arguments, engine)
    try:
        wait_until_up(child, superlink(kit, here))
        runtime.register(superlink(kit, here), keys)
        write_whole(engine / "address", here + "\n")
        logger.info("listening at %s for %s", kit.federation.server, ", ".join(keys))
        child.process.wait()
        logger.warning("Flower's SuperLink ended and is started again: %s", child.last_words())
    finally:
        child.stop()


def wait_until_up(child: Child, superlink: runtime.Superlink) -> None:
    """Return once it answers; a SuperLink that cannot even start is an error that trying again does not mend."""
    deadline = time.monotonic() + STARTS_WITHIN
    while not is_up(superlink):
        if child.ended or time.monotonic() > deadline:
            raise RunError(f"Flower's SuperLink did not start: {child.last_words()}")
        time.sleep(0.1)


def is_up(superlink: runtime.Superlink) -> bool:
    """Whether it answers, and to our secret: another server on the same port would not."""
    try:
        return runtime.answers(superlink)
    except httpx.HTTPError:
        return False


def superlink(kit: ServerKit, address: str) -> runtime.Superlink:
    """The SuperLink as its operator sees it."""
    try:
        secret = (kit.folder / "engine" / "secret").read_bytes()
        authority = (kit.folder / "tls" / "ca.crt").read_bytes()
    except OSError as error:
        raise RunError(f"{error.filename}: {error.strerror}: is the server started (`harmofl deploy start`)?") from None
    return runtime.Superlink(address, authority, secret)


def arguments(kit: ServerKit, secret: Path, address: Address) -> list[str]:
    """Ours, then Flower's. All is kept in memory: no site's update is written to the server's disk."""
    tls = kit.folder / "tls"
    return [
        str(secret),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--ssl-ca-certfile", str(tls / "ca.crt")),
        *("--ssl-certfile", str(tls / "server.crt"), "--ssl-keyfile", str(tls / "server.key")),
        *("--host", address.host, "--port", str(address.port)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


def site_keys(kit: ServerKit) -> dict[str, bytes]:
    """The public keys of the federation's sites, as Flower stores them."""
    return {site: site_key(kit.folder / "keys" / f"{site}.pub") for site in sorted(kit.federation.sites)}


def site_key(path: Path) -> bytes:
    """One site's public key."""
    try:
        return runtime.node_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a site's public key: {error}") from None
