"""Flower's own part of `harmofl deploy check`, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from harmofl.deployment.engine import Finding
from harmofl.deployment.flower.addresses import running_address
from harmofl.deployment.flower.children import prepare_process
from harmofl.deployment.flower.identities import client_context, read_key
from harmofl.deployment.flower.runtime.inbox import try_to_join
from harmofl.deployment.flower.server import is_up, open_superlink, read_site_key
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.tls.checks import Credentials, check_credentials, check_port, check_way
from harmofl.errors import RunError, UsageError

SECONDS = 5.0
BEHIND, AHEAD = 300, 5
"""Seconds by which a site's clock may differ: Flower refuses older and later signatures."""


AUTHORITY = "tls/ca.crt"
NOT_LET_IN = Finding(
    False,
    "the server does not let this site in",
    "the server must hold this site's public key in its folder keys/",
)


def check_server(kit: ServerKit) -> Iterator[Finding]:
    """Whether the server could listen, and whom it would let in."""
    own = Credentials(key="tls/server.key", authority=AUTHORITY)
    yield from check_credentials(kit.folder, own)
    yield check_port(kit, own)
    for site in sorted(kit.federation.sites):
        yield check_public_key(kit.folder / "keys" / f"{site}.pub", site)


def check_site(kit: SiteKit) -> Iterator[Finding]:
    """Whether the server can be reached, and lets this site in."""
    own = Credentials(key=f"keys/{kit.name}", authority=AUTHORITY)
    yield from check_credentials(kit.folder, own)
    way = check_way(kit, own)
    yield way
    if not way.ok:
        return
    prepare_process()
    try:
        clock = check_clock(kit)
    except httpx.HTTPError:  # it does not even answer who has no key that it knows
        yield NOT_LET_IN
        return
    yield clock
    if clock.ok:  # otherwise the site would be refused for another reason than it seems
        yield check_welcome(kit)


def check_public_key(path: Path, site: str) -> Finding:
    """Whether a site's public key can be read."""
    if not path.exists():
        hint = (
            f"its key is made by `harmofl deploy join` there, and accepted by the coordinator; then copy it to {path}"
        )
        return Finding(True, f"{site} has not joined yet", hint)
    try:
        read_site_key(path)
    except UsageError as error:
        return Finding(False, str(error), f"without it {site} is not let in")
    return Finding(True, f"{site} is registered by its key")


def is_running(kit: ServerKit) -> bool:
    """Whether the SuperLink of this kit answers."""
    prepare_process()
    try:
        return is_up(open_superlink(kit, running_address(kit)))
    except RunError:
        return False


def check_clock(kit: SiteKit) -> Finding:
    """Whether this machine's clock agrees with the server's, as signatures carry the time."""
    key = read_key(kit.folder / "keys" / kit.name)
    with httpx.Client(verify=client_context((kit.folder / AUTHORITY).read_bytes(), key)) as client:
        answer = client.get(f"https://{kit.federation.server}/", timeout=SECONDS)
    try:
        ahead = (datetime.now(UTC) - parsedate_to_datetime(answer.headers["date"])).total_seconds()
    except (KeyError, ValueError):
        return Finding(True, "the server does not say what time it is")
    ok = -BEHIND < ahead < AHEAD
    return Finding(ok, f"this clock is {ahead:+.0f} s from the server's", "" if ok else "set it, for example by NTP")


def check_welcome(kit: SiteKit) -> Finding:
    """Whether the server knows this site's key; a site that runs has been let in or says so in its log."""
    try:
        with kit.lock():
            try_to_join(
                kit.federation.server,
                (kit.folder / "tls" / "ca.crt").read_bytes(),
                (kit.folder / "keys" / kit.name).read_bytes(),
            )
    except UsageError:
        return Finding(True, "the site is running; its log says whether it is connected")
    except httpx.HTTPError:
        return NOT_LET_IN
    return Finding(True, "the server knows this site")
