import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st

from harmofl.federation.secure.masks import BLOCK, apply_mask


def test_a_mask_is_the_key_stream_of_chacha20() -> None:
    """RFC 8439, A.1, first vector: the stream of a zero key starts with 76 b8 e0 ad a0 f1 3d 90."""
    words = np.array([5, 7], dtype=np.uint64)
    apply_mask(words, bytes(32), 1)
    first = int.from_bytes(bytes.fromhex("76b8e0ada0f13d90"), "little")
    second = int.from_bytes(bytes.fromhex("405d6ae55386bd28"), "little")
    assert words.tolist() == [first + 5, second + 7]


@given(st.binary(min_size=32, max_size=32), st.sampled_from([0, 1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3]))
@settings(max_examples=20, deadline=None)
def test_a_mask_is_the_same_stream_whatever_the_blocks_and_can_be_taken_away(key: bytes, length: int) -> None:
    words = np.zeros(length, dtype=np.uint64)
    apply_mask(words, key, 1)
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * length))
    assert words.tobytes() == np.frombuffer(stream, dtype="<u8").astype(np.uint64).tobytes()
    apply_mask(words, key, -1)
    assert not words.any()


def test_sums_wrap_around() -> None:
    words = np.full(4, 2**64 - 1, dtype=np.uint64)
    apply_mask(words, bytes(32), 1)
    apply_mask(words, bytes(32), -1)
    assert words.tolist() == [2**64 - 1] * 4
