"""Flower's part of `harmofl deploy join` and `accept`: kits without keys, and a key that the server gets to know."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import CertificateSigningRequest

from harmofl.deployment.flower.provisioning import provision
from harmofl.deployment.kits import Federation
from harmofl.deployment.tls.certificates import read_authority
from harmofl.deployment.tls.requests import issue_site_certificate
from harmofl.errors import UsageError
from harmofl.files import write_whole


def invite(federation: Federation, folder: Path) -> None:
    """Make the server's part, and give each site the authority's certificate; the key it makes itself."""
    provision(federation.model_copy(update={"sites": []}), folder)
    authority = (folder / "server" / "tls" / "ca.crt").read_bytes()
    for site in federation.sites:
        write_whole(folder / "sites" / site / "tls" / "ca.crt", authority)


def admit(folder: Path, site: str, request: CertificateSigningRequest) -> bytes:
    """Register a site's public key with the server, and sign a certificate for it."""
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UsageError(f"the request of {site!r}: Flower needs a key on the curve P-384")
    signer, issuer = read_authority(folder / "authority")
    text = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    certificate = issue_site_certificate(signer, issuer, site, key)
    write_whole(folder / "server" / "keys" / f"{site}.pub", text + f" {site}\n".encode())
    return certificate
