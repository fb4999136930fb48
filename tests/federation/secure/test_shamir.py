import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harmofl.federation.secure.shamir import PRIME, join, share_from_hex, share_to_hex, split

SECRET = st.binary(min_size=32, max_size=32)


def test_the_modulus_is_a_prime() -> None:
    """Fermat's test with many bases, as an independent check."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in range(2, 50))
    assert PRIME > 2**256


def test_a_parabola_worked_by_hand() -> None:
    """5 + 2x + 3x²: 10, 21, 38, 61 at 1 to 4."""
    five = (5).to_bytes(32, "big")
    assert join({1: 10, 2: 21, 3: 38}, threshold=3) == five
    assert join({2: 21, 3: 38, 4: 61}, threshold=3) == five


@given(SECRET, st.integers(1, 12), st.data())
@settings(deadline=None)
def test_any_threshold_of_shares_gives_the_secret_back(secret: bytes, count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, count))
    shares = split(secret, list(range(1, count + 1)), threshold)
    chosen = data.draw(st.permutations(sorted(shares)))[: data.draw(st.integers(threshold, count))]
    assert join({place: shares[place] for place in chosen}, threshold) == secret


@given(SECRET, SECRET)
@settings(deadline=None)
def test_fewer_shares_fit_every_secret(secret: bytes, other: bytes) -> None:
    """For threshold 2, one share and any other secret lie on a line: the share says nothing."""
    shares = split(secret, [1, 2, 3], threshold=2)
    slope = (shares[1] - int.from_bytes(other, "big")) % PRIME
    forged = (int.from_bytes(other, "big") + 2 * slope) % PRIME
    assert join({1: shares[1], 2: forged}, threshold=2) == other


def test_fewer_shares_than_the_threshold_are_refused() -> None:
    shares = split(secrets.token_bytes(32), [1, 2, 3], threshold=3)
    with pytest.raises(ValueError, match="2 shares: 3 are needed"):
        join({1: shares[1], 2: shares[2]}, threshold=3)


def test_shares_of_two_polynomials_are_not_the_secret() -> None:
    secret = secrets.token_bytes(32)
    first, second = (split(secret, [1, 2], threshold=2) for _ in range(2))
    assert join({1: first[1], 2: second[2]}, threshold=2) != secret  # the line through both, at 0


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"a secret of {length} bytes: must have 32"):
        split(bytes(length), [1, 2], 2)


@pytest.mark.parametrize("places", [[0, 1], [1, 1], [-1, 2]])
def test_places_that_would_give_the_secret_away_are_refused(places: list[int]) -> None:
    with pytest.raises(ValueError, match="must differ, and be above 0"):
        split(bytes(32), places, 2)


@pytest.mark.parametrize("threshold", [0, 3])
def test_a_threshold_that_nobody_can_reach_is_refused(threshold: int) -> None:
    with pytest.raises(ValueError, match="must be from 1 to 2"):
        split(bytes(32), [1, 2], threshold)


def test_a_share_travels_as_33_bytes() -> None:
    assert share_from_hex(share_to_hex(PRIME - 1)) == PRIME - 1
    assert len(share_to_hex(7)) == 66
    for bad in ("00" * 32, "ff" * 33, "zz" * 33):
        with pytest.raises(ValueError, match=r"share|hex"):
            share_from_hex(bad)
