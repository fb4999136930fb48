import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harmofl.federation.secure.fixed_point import (
    LARGEST_ERROR,
    OutOfRangeError,
    decode,
    encode,
    is_plausible,
    largest_value,
)


def test_a_number_is_a_multiple_of_two_to_the_minus_36() -> None:
    words = encode(torch.tensor([0.0, 1.0, -1.0, 2.0**-36, 3 * 2.0**-38], dtype=torch.float64), 3)
    assert words.tolist() == [0, 2**36, 2**64 - 2**36, 1, 1]  # 0.75 is rounded to 1


def test_halves_are_rounded_to_even() -> None:
    halves = torch.tensor([0.5, 1.5, -0.5], dtype=torch.float64) * 2.0**-36
    assert encode(halves, 3).view(np.int64).tolist() == [0, 2, 0]


@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=20), st.integers(1, 100))
@settings(deadline=None)
def test_a_number_is_off_by_at_most_the_stated_error(numbers: list[float], num_sites: int) -> None:
    values = torch.tensor(numbers, dtype=torch.float64)
    assert (decode(encode(values, num_sites)) - values).abs().max() <= LARGEST_ERROR


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30))
@settings(deadline=None)
def test_a_sum_does_not_depend_on_the_order_and_is_off_by_one_error_a_number(numbers: list[float]) -> None:
    rows = [encode(torch.tensor([number], dtype=torch.float64), len(numbers)) for number in numbers]
    forwards, backwards = rows[0] * 0, rows[0] * 0
    for row in rows:
        forwards = forwards + row
    for row in reversed(rows):
        backwards = backwards + row
    assert forwards.tolist() == backwards.tolist()
    exact = sum(int(number * 2**60) for number in numbers) / 2**60
    assert abs(float(decode(forwards)) - exact) <= len(numbers) * LARGEST_ERROR * (1 + 1e-3)


def test_numbers_beyond_the_range_are_refused_by_name() -> None:
    limit = largest_value(8)
    assert limit == 2.0**23
    encode(torch.tensor([limit, -limit]), 8)
    for bad in (limit * 1.001, -limit * 1.001, float("inf"), float("nan")):
        with pytest.raises(OutOfRangeError, match="secure aggregation of 8 sites takes up to"):
            encode(torch.tensor([1.0, bad], dtype=torch.float64), 8)


def test_a_sum_of_honest_sites_is_plausible_and_noise_is_not() -> None:
    largest = encode(torch.full((1000,), largest_value(4), dtype=torch.float64), 4)
    assert is_plausible(decode(largest + largest + largest + largest))
    noise = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    assert not is_plausible(decode(noise))
