"""A party's key as TLS wants it, in a certificate: the key alone says who it is.

The server knows sites by their public keys, and no authority is asked. So a site signs its own certificate, and the
server makes the issuer that this certificate names, from the public key that it knows: OpenSSL checks the site's
signature with it, and takes it as trusted without a look at its own. Dates mean nothing here, so no clock matters.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from harmofl.deployment.tls.certificates import new_key, subject_name
from harmofl.deployment.tls.requests import read_private_key
from harmofl.errors import UsageError

ALWAYS = datetime(2000, 1, 1, tzinfo=UTC), datetime(2099, 12, 31, tzinfo=UTC)
CURVE = ec.SECP384R1()
ORDER = int("ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16)
"""Of the curve P-384 (FIPS 186-4, D.1.2.4)."""


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a site's private key."""
    key = read_private_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{path}: not a key on an elliptic curve, which Flower needs")
    return key


def public_text(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as Flower writes it."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def issuer_name(key: ec.EllipticCurvePublicKey) -> x509.Name:
    """Who signs for a key: the key itself, by a name that no other has."""
    return subject_name(f"key {hashlib.sha256(public_text(key)).hexdigest()[:48]}")


def start(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    """Fill in what both certificates have in common."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name(key))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(ALWAYS[0])
        .not_valid_after(ALWAYS[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key), critical=False)
    )


def make_certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The certificate by which a key's owner shows it, as PEM."""
    certificate = (
        start(subject_name("harmofl"), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    )
    return certificate.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def make_anchor(key: ec.EllipticCurvePublicKey) -> bytes:
    """The issuer of such a certificate, as PEM, for whoever knows the public key and trusts it."""
    certificate = start(issuer_name(key), key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    signer = new_key()  # nobody looks at the signature of what is trusted already
    return certificate.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def derive_operator(secret: bytes) -> ec.EllipticCurvePrivateKey:
    """The operator's key, from the server's secret: whoever can read that is the operator."""
    digest = hashlib.sha512(b"harmofl operator's key" + secret).digest()
    return ec.derive_private_key(int.from_bytes(digest, "big") % (ORDER - 1) + 1, CURVE)


def client_context(authority: bytes, key: ec.EllipticCurvePrivateKey) -> ssl.SSLContext:
    """TLS to the federation's server, with one's own key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.decode("ascii"))
    return with_own_key(context, key)


def with_own_key(context: ssl.SSLContext, key: ec.EllipticCurvePrivateKey) -> ssl.SSLContext:
    """Let a context show a key. OpenSSL wants a file of it, which is gone when this returns."""
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    handle, path = tempfile.mkstemp()  # only this user can read it
    try:
        os.write(handle, text + make_certificate(key))
        context.load_cert_chain(path)
    finally:
        os.close(handle)
        os.unlink(path)
    return context
