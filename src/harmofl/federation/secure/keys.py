"""Keys that two sites agree on through the server (X25519, then HKDF), sealed shares, and signatures (Ed25519)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
NONCE_BYTES = 12


@dataclass(frozen=True)
class KeyPair:
    """A private key with its public one, 32 bytes each."""

    private: bytes
    public: bytes

    @classmethod
    def make(cls) -> KeyPair:
        """Make a new one from the system's randomness."""
        return cls.of(X25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        """The pair of a private key."""
        return cls(private, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The key of 32 bytes that both sides compute, each from its own private key and the other's public one.

    >>> one, other = KeyPair.make(), KeyPair.make()
    >>> agree(one.private, other.public, b"test") == agree(other.private, one.public, b"test")
    True
    """
    key = X25519PrivateKey.from_private_bytes(private)
    # ValueError for a public key that makes every secret the same.
    return derive(key.exchange(X25519PublicKey.from_public_bytes(public)), purpose)


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def seal(key: bytes, message: bytes, about: bytes) -> bytes:
    """Encrypt a message so that any change of it, or of what it is about, shows."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, message, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Decrypt it; ValueError if it was changed, or is not for this key.

    >>> unseal(bytes(32), seal(bytes(32), b"share", b"from A to B"), b"from A to B")
    b'share'
    """
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
    except (InvalidTag, ValueError):
        raise ValueError("it was changed on its way, or is for somebody else") from None


def make_signing_keys() -> KeyPair:
    """Make a new pair for signatures from the system's randomness."""
    private = Ed25519PrivateKey.generate()
    return KeyPair(private.private_bytes_raw(), private.public_key().public_bytes_raw())


def sign(private: bytes, message: bytes) -> bytes:
    """The signature of a message."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(message)


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature of a message is by the owner of a public key.

    >>> keys = make_signing_keys()
    >>> is_signed(keys.public, b"A, B, C", sign(keys.private, b"A, B, C"))
    True
    >>> is_signed(keys.public, b"A, B", sign(keys.private, b"A, B, C"))
    False
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
