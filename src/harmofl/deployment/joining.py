"""`harmofl deploy join`, at the hospital: it makes its own key, and asks the coordinator for a certificate.

The private key is made here, stays here, and nobody else ever has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harmofl.deployment.engine import find_engine
from harmofl.deployment.enrollment import Enrollment
from harmofl.deployment.kits import SiteKit
from harmofl.errors import UsageError
from harmofl.files import write_whole


@dataclass(frozen=True)
class OwnRequest:
    """What a hospital sends to the coordinator, and the number that both compare by telephone."""

    path: Path
    fingerprint: str


def enrollment_of(kit: SiteKit) -> Enrollment:
    """How this site makes its key."""
    engine = find_engine(kit.federation.engine)
    if engine.enrollment is None:
        raise UsageError(f"engine {engine.name!r}: its sites make no keys of their own")
    return engine.enrollment


def request_path(kit: SiteKit) -> Path:
    """Where the request lies."""
    return kit.folder / f"{kit.name}.csr"


def make_own_request(kit: SiteKit) -> OwnRequest:
    """Make this site's key and its request; if they are there already, return the same request again."""
    from harmofl.deployment.tls.certificates import read_certificate
    from harmofl.deployment.tls.requests import compute_fingerprint, make_private_key, make_request, read_private_key

    enrollment, path = enrollment_of(kit), request_path(kit)
    place = kit.folder / enrollment.key(kit.name)
    authority = read_certificate(kit.folder / enrollment.authority)
    if place.exists() and not path.exists():
        reason = "the key here was made by somebody else, or without a request"
        raise UsageError(f"{place}: {reason}; delete it to make another one")
    key = read_private_key(place) if place.exists() else make_private_key(place, enrollment.algorithm)
    write_whole(path, make_request(key, kit.name))
    return OwnRequest(path, compute_fingerprint(authority, kit.federation.server, kit.name, key.public_key()))


def install_certificate(kit: SiteKit, path: Path) -> Path:
    """Put the certificate that the coordinator sent in its place, if it is for this site's key; return the place."""
    from harmofl.deployment.tls.requests import check_issued, read_private_key

    enrollment = enrollment_of(kit)
    key = read_private_key(kit.folder / enrollment.key(kit.name))
    check_issued(path, key, kit.folder / enrollment.authority)
    place = kit.folder / enrollment.certificate
    write_whole(place, path.read_bytes())
    return place
