"""Shamir's secret sharing: any `threshold` shares give the secret back, and fewer say nothing about it.

A. Shamir, "How to share a secret", CACM 1979. The secret is the constant term of a polynomial of degree threshold − 1
with random coefficients, over the integers modulo a prime; a share is its value at a place from 1 on.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from math import prod

PRIME = 2**256 + 297
"""The smallest prime above every secret of 32 bytes."""
SECRET_BYTES = 32
SHARE_BYTES = 33

Shares = dict[int, int]
"""From a place to the polynomial's value there."""


def split(secret: bytes, places: Sequence[int], threshold: int) -> Shares:
    """Make one share for each place.

    >>> shares = split(bytes(31) + b"\\x07", places=[1, 2, 3], threshold=2)
    >>> (2 * shares[1] - shares[2]) % PRIME  # the line through both, at 0
    7
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes: must have {SECRET_BYTES}")
    _check_places(places)
    if not 1 <= threshold <= len(places):
        raise ValueError(f"threshold {threshold}: must be from 1 to {len(places)}, the number of shares")
    random = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients = [int.from_bytes(secret, "big"), *random]
    return {place: _value(coefficients, place) for place in places}


def join(shares: Mapping[int, int], threshold: int) -> bytes:
    """Give the secret back from at least `threshold` shares; those beyond are not needed.

    >>> join({1: 10, 3: 16}, threshold=2) == (7).to_bytes(32, "big")  # the line 7 + 3x
    True
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares: {threshold} are needed")
    places = sorted(shares)[:threshold]
    _check_places(places)
    weights = [_weight_at_zero(place, places) for place in places]
    secret = sum(weight * shares[place] for weight, place in zip(weights, places, strict=True)) % PRIME
    try:
        return secret.to_bytes(SECRET_BYTES, "big")
    except OverflowError:
        raise ValueError("the shares do not belong together") from None


def share_to_hex(share: int) -> str:
    """A share as it travels."""
    return share.to_bytes(SHARE_BYTES, "big").hex()


def share_from_hex(text: str) -> int:
    """Read a share that travelled."""
    data = bytes.fromhex(text)
    share = int.from_bytes(data, "big")
    if len(data) != SHARE_BYTES or share >= PRIME:
        raise ValueError(f"a share of {len(data)} bytes: must be a number below the prime in {SHARE_BYTES}")
    return share


def _check_places(places: Sequence[int]) -> None:
    if len(set(places)) != len(places) or not all(0 < place < PRIME for place in places):
        raise ValueError("places of shares must differ, and be above 0: the secret is at 0")


def _value(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


def _weight_at_zero(place: int, places: Sequence[int]) -> int:
    """Lagrange's polynomial that is 1 at this place and 0 at the others, at 0."""
    others = [other for other in places if other != place]
    numerator = prod(others) % PRIME
    denominator = prod(other - place for other in others) % PRIME
    return numerator * pow(denominator, -1, PRIME) % PRIME
