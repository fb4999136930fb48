"""How a site makes its own key: what `harmofl deploy join` and `accept` need to know of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harmofl.deployment.kits import Federation

if TYPE_CHECKING:
    from cryptography.x509 import CertificateSigningRequest


@dataclass(frozen=True)
class Enrollment:
    """The files and functions by which a site of an engine gets its credentials without giving its key away.

    Args:
        algorithm: the kind of key that the engine needs (`harmofl.deployment.tls.requests`).
        key: `(site)`: the private key's path, below the site's folder.
        certificate: the path of the site's certificate, below its folder.
        authority: the path of the authority's certificate, below each party's folder.
        invite: `(federation, folder)`: like `Engine.provision`, but makes no key for any site.
        admit: `(folder, site, request)`: lets the server know the site; returns its signed certificate as PEM.
        common_name: `(site)`: what the site is called in its certificate.
    """

    algorithm: Literal["ec", "rsa"]
    key: Callable[[str], str]
    certificate: str
    authority: str
    invite: Callable[[Federation, Path], None]
    admit: Callable[[Path, str, CertificateSigningRequest], bytes]
    common_name: Callable[[str], str] = str
