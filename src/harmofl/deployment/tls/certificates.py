"""Certificates and keys of a federation: its own authority, the server's certificate, a key per site.

The authority's key signs the server's certificate and is needed for nothing else: it can be kept in a safe. A site's
private key never leaves its site; the server knows the public one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from harmofl.errors import UsageError
from harmofl.files import PRIVATE, write_whole

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825
"""The most that some systems accept of a server's certificate."""
CLOCKS_DIFFER = timedelta(days=1)
OWN_MACHINE = ("localhost", "127.0.0.1")
"""How the server's own machine reaches it."""


@dataclass(frozen=True)
class Validity:
    """From when to when a certificate is valid."""

    begins: datetime
    ends: datetime

    def days_left(self, now: datetime | None = None) -> int:
        """Whole days until it expires; negative if it has."""
        return (self.ends - (now or datetime.now(UTC))).days


def make_authority(folder: Path, name: str = "harmofl federation") -> Path:
    """Make an authority, `ca.crt` with its key, unless the folder has one; return the folder."""
    if (folder / "ca.key").exists():
        return folder
    key = new_key()
    subject = subject_name(f"{name} authority")
    signs = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        start_certificate(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
    )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_private_key(folder / "ca.key", key)
    write_whole(folder / "ca.crt", sign(certificate, key))
    return folder


def issue_server_certificate(authority: Path, hosts: Sequence[str], folder: Path, days: int = SERVER_DAYS) -> Path:
    """Write `server.crt`, `server.key` and the authority's `ca.crt` into a folder; return the certificate's path.

    `hosts`: the names and addresses under which sites reach the server; those of its own machine are added.
    """
    own, issuer = read_authority(authority)
    key = new_key()
    names = x509.SubjectAlternativeName([alternative_name(host) for host in dict.fromkeys((*hosts, *OWN_MACHINE))])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key())
    certificate = (
        start_certificate(subject_name("harmofl server"), issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(identifier, critical=False)
    )
    write_private_key(folder / "server.key", key)
    write_whole(folder / "server.crt", sign(certificate, own))
    write_whole(folder / "ca.crt", (authority / "ca.crt").read_bytes())
    return folder / "server.crt"


def make_site_key(folder: Path, name: str) -> Path:
    """Make a site's key, as `ssh-keygen -t ecdsa -b 384` would; return the public key's path."""
    if (folder / name).exists():
        raise UsageError(f"{folder / name}: the site has a key already")
    key, public = new_key(), folder / f"{name}.pub"
    text = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_private_key(folder / name, key, openssh=True)
    write_whole(public, text + f" {name}\n".encode())
    return public


def certificate_files(folder: Path) -> list[Path]:
    """All certificates in a folder."""
    return sorted(path for ending in ("*.crt", "*.pem") for path in folder.glob(ending))


def read_validity(path: Path) -> Validity:
    """Read from when to when the certificate in a file is valid."""
    certificate = read_certificate(path)
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def read_certificate(path: Path) -> x509.Certificate:
    """Read the certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"{path}: not a certificate") from None


def read_authority(folder: Path) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    """Read the key and the certificate that `make_authority` wrote."""
    path = folder / "ca.key"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; it signs the server's certificate") from None
    except (ValueError, TypeError):
        raise UsageError(f"{path}: not the key of an authority") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UsageError(f"{path}: not the key of an authority")
    return key, read_certificate(folder / "ca.crt")


def new_key() -> EllipticCurvePrivateKey:
    """Make a key, on the curve that Flower asks of sites."""
    return ec.generate_private_key(ec.SECP384R1())


def write_private_key(path: Path, key: EllipticCurvePrivateKey, openssh: bool = False) -> None:
    """Write a key that only its owner can read, from the first moment on."""
    kind = serialization.PrivateFormat.OpenSSH if openssh else serialization.PrivateFormat.PKCS8
    text = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    write_whole(path, text, PRIVATE)


def subject_name(name: str) -> x509.Name:
    """Make the name that a certificate is for, or from."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def start_certificate(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, days: int
) -> x509.CertificateBuilder:
    """Fill in what all certificates have in common."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def sign(certificate: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> bytes:
    """Sign a certificate; return it as PEM."""
    return certificate.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def alternative_name(host: str) -> x509.GeneralName:
    """Write a host as a certificate names it: addresses are not names."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
