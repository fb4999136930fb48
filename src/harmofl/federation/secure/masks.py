"""Masks: the key stream of ChaCha20, as integers modulo 2⁶⁴, added to or taken from numbers in place."""

from __future__ import annotations

import sys
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from harmofl.federation.secure.fixed_point import Words

KEY_BYTES = 32
BLOCK = 2**17
"""Integers at a time: one megabyte stays in the processor's cache."""
NONCE = bytes(16)
"""Always the same, as every key makes one stream only."""


def apply_mask(words: Words, key: bytes, sign: Literal[1, -1]) -> None:
    """Add the mask of a key to integers in place, or take it away.

    >>> words = np.zeros(3, dtype=np.uint64)
    >>> apply_mask(words, bytes(32), 1)
    >>> hex(words[0])
    '0x903df1a0ade0b876'
    >>> apply_mask(words, bytes(32), -1)
    >>> words.tolist()
    [0, 0, 0]
    """
    stream, block = Cipher(ChaCha20(key, NONCE), mode=None).encryptor(), bytearray(8 * BLOCK)
    zeros = memoryview(bytes(8 * BLOCK))
    combine = np.add if sign == 1 else np.subtract
    for start in range(0, len(words), BLOCK):
        part = words[start : start + BLOCK]
        stream.update_into(zeros[: part.nbytes], block)
        mask = np.frombuffer(block, dtype=np.uint64, count=len(part))
        combine(part, mask if sys.byteorder == "little" else mask.byteswap(), out=part)
