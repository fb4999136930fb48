"""A site's own key: its request for a certificate, and a number that two people compare by telephone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from harmofl.deployment.tls.certificates import new_key, read_certificate, start_certificate, subject_name
from harmofl.errors import UsageError
from harmofl.files import PRIVATE, write_whole

Algorithm = Literal["ec", "rsa"]
"""EC: on the curve P-384, kept as OpenSSH keeps it. RSA: of 3072 bits."""
PrivateKey = EllipticCurvePrivateKey | RSAPrivateKey

RSA_BITS = 3072
SITE_DAYS = 365
LARGEST_REQUEST = 2**16
GROUPS, DIGITS = 6, 5


def make_private_key(path: Path, algorithm: Algorithm) -> PrivateKey:
    """Make a key in a file that only its owner can read, from the first moment on."""
    key = new_key() if algorithm == "ec" else rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    kind = serialization.PrivateFormat.OpenSSH if algorithm == "ec" else serialization.PrivateFormat.PKCS8
    text = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    write_whole(path, text, PRIVATE)
    return key


def to_pem(key: PrivateKey) -> bytes:
    """A key as TLS libraries read it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_private_key(path: Path) -> PrivateKey:
    """Read a key in either format."""
    try:
        text = path.read_bytes()
        load = serialization.load_ssh_private_key if b"OPENSSH" in text else serialization.load_pem_private_key
        key = load(text, None)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UsageError(f"{path}: not a private key") from None
    if not isinstance(key, PrivateKey):
        raise UsageError(f"{path}: not a private key of a site")
    return key


def make_request(key: PrivateKey, name: str) -> bytes:
    """Ask for a certificate for a name, as PEM; the signature proves that whoever asks has the key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_name(name))
    return builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def read_request(path: Path) -> x509.CertificateSigningRequest:
    """Read a request, and check that its sender has the key it asks for."""
    try:
        if path.stat().st_size > LARGEST_REQUEST:
            raise UsageError(f"{path}: too large for a request")
        request = x509.load_pem_x509_csr(path.read_bytes())
        genuine = request.is_signature_valid
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"{path}: not a request that `harmofl deploy join` made") from None
    if not genuine:
        raise UsageError(f"{path}: its signature is wrong: it was changed on its way")
    return request


def requested_name(path: Path, request: x509.CertificateSigningRequest) -> str:
    """The site that a request is for."""
    names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise UsageError(f"{path}: it names no site")
    return str(names[0].value)


def issue_site_certificate(
    signer: PrivateKey, issuer: x509.Certificate, name: str, key: CertificatePublicKeyTypes, days: int = SITE_DAYS
) -> bytes:
    """Sign a certificate by which a site shows who it is: nobody can be a server with it."""
    certificate = (
        start_certificate(subject_name(name), issuer.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return certificate.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def check_issued(path: Path, key: PrivateKey, authority: Path) -> x509.Certificate:
    """Read a certificate, if it is for this key and from this authority."""
    certificate = read_certificate(path)
    if public_bytes(certificate.public_key()) != public_bytes(key.public_key()):
        raise UsageError(f"{path}: made for another key than this site's; send the coordinator the request again")
    try:
        certificate.verify_directly_issued_by(read_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        raise UsageError(f"{path}: not signed by this federation's authority ({authority.name})") from None
    return certificate


def compute_fingerprint(authority: x509.Certificate, server: str, name: str, key: CertificatePublicKeyTypes) -> str:
    """A number that both ends share only if they mean the same key, name, server and authority.

    So one comparison serves both: the coordinator knows whose key it signs, and the hospital whom its kit is from. It
    has thirty digits, 99 bits: too many for anyone in between to find keys that lead to the same number.
    """
    digest = hashlib.sha256(b"harmofl site key 1")
    parts = (authority.public_bytes(serialization.Encoding.DER), server.encode(), name.encode(), public_bytes(key))
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    number = int.from_bytes(digest.digest(), "big") % 10 ** (GROUPS * DIGITS)
    text = f"{number:0{GROUPS * DIGITS}d}"
    return " ".join(text[start : start + DIGITS] for start in range(0, len(text), DIGITS))


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two people have read the same digits, however they wrote them down."""
    digits = ["".join(filter(str.isdigit, text)) for text in (one, other)]
    return digits[0] == digits[1] and len(digits[0]) == GROUPS * DIGITS


def public_bytes(key: CertificatePublicKeyTypes) -> bytes:
    """A public key's own bytes, to compare it."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
