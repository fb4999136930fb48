"""`harmofl deploy accept`, at the coordinator's: a hospital's request becomes a certificate; its key stays there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.x509 import CertificateSigningRequest

from harmofl.deployment.engine import Engine, find_engine
from harmofl.deployment.enrollment import Enrollment
from harmofl.deployment.kits import Federation, Kits
from harmofl.deployment.provisioning import ACCEPTED, SERVER, accepted_files, open_kits, require_authority
from harmofl.deployment.tls.certificates import read_certificate
from harmofl.deployment.tls.requests import compute_fingerprint, public_bytes, read_request, requested_name
from harmofl.errors import UsageError, unknown_name
from harmofl.files import write_whole

Confirm = Callable[[str, str], bool]
"""Shown a site and a number: whether the hospital reads out the same."""


@dataclass(frozen=True)
class Accepted:
    """A site that was accepted: what to send to it, and what to copy to the server."""

    site: str
    certificate: Path
    server_files: list[Path]


def accept(folder: Path, path: Path, confirm: Confirm) -> Accepted:
    """Sign a site's request, if somebody confirms that it is the site's."""
    federation, kits = open_kits(folder)
    engine = find_engine(federation.engine)
    request = read_request(path)
    site = check_request(folder, path, request, federation, kits)
    enrollment = enrollment_of(engine)
    require_authority(folder, federation)
    authority = read_certificate(folder / SERVER / enrollment.authority)
    if not confirm(site, compute_fingerprint(authority, federation.server, site, request.public_key())):
        raise UsageError(f"{path}: not accepted: the hospital's number must be the same as here")
    return admit(folder, engine, site, request, path.read_bytes())


def enrollment_of(engine: Engine) -> Enrollment:
    """How sites of an engine make their keys."""
    if engine.enrollment is None:
        raise UsageError(f"engine {engine.name!r}: its sites make no keys of their own")
    return engine.enrollment


def check_request(
    folder: Path, path: Path, request: CertificateSigningRequest, federation: Federation, kits: Kits
) -> str:
    """Return the site of a request that can be accepted."""
    site = requested_name(path, request)
    if site not in federation.sites:
        raise unknown_name("site", site, federation.sites)
    if site not in kits.own_keys:
        raise UsageError(f"{path}: the kit of {site!r} was made with a key; only sites without one can ask")
    kept, _ = accepted_files(folder, site)
    if kept.exists() and public_bytes(read_request(kept).public_key()) != public_bytes(request.public_key()):
        hint = "if this one is the hospital's, too, remove the site and add it again"
        raise UsageError(f"{path}: another key of {site!r} has been accepted before; {hint}")
    return site


def admit(folder: Path, engine: Engine, site: str, request: CertificateSigningRequest, text: bytes) -> Accepted:
    """Sign, let the server know, and keep the request: certificates are renewed from it."""
    kept, certificate = accepted_files(folder, site)
    (folder / ACCEPTED).mkdir(exist_ok=True)
    write_whole(certificate, enrollment_of(engine).admit(folder, site, request))
    write_whole(kept, text)
    return Accepted(site, certificate, [folder / SERVER / path for path in engine.server_files([site])])


def renew_accepted(folder: Path) -> list[Path]:
    """Sign the accepted requests again; return the certificates to send to the sites."""
    federation, kits = open_kits(folder)
    engine, renewed = find_engine(federation.engine), []
    for site in kits.own_keys:
        kept, _ = accepted_files(folder, site)
        if kept.exists():
            renewed.append(admit(folder, engine, site, read_request(kept), kept.read_bytes()).certificate)
    return renewed
