"""Numbers as whole multiples of 2⁻³⁶ modulo 2⁶⁴: sums are exact, whatever their order, and masks cancel to the bit.

Each number is rounded once, to the nearest multiple, so it is off by at most 2⁻³⁷ (7.3 · 10⁻¹²); a mean over sites is
off by no more than that.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FRACTION_BITS = 36
LARGEST_ERROR = 2.0 ** -(FRACTION_BITS + 1)
LARGEST_SUM = 2.0 ** (62 - FRACTION_BITS)
"""An honest sum uses half of the range. A sum whose masks did not cancel leaves it, one number out of two."""

Words = NDArray[np.uint64]
"""Integers modulo 2⁶⁴: numpy's sums of them wrap around."""


class OutOfRangeError(ValueError):
    """A number that is too large for the fixed-point range."""


def largest_value(num_sites: int) -> float:
    """How large a number of one site may be, so that the sum over all sites stays in range.

    >>> largest_value(4) == 2.0**24
    True
    """
    return LARGEST_SUM / num_sites


def encode(values: Tensor, num_sites: int) -> Words:
    """Turn real numbers into integers modulo 2⁶⁴.

    >>> encode(torch.tensor([1.0, -0.5]), num_sites=3).view(np.int64).tolist() == [2**36, -(2**35)]
    True
    """
    exact = values.detach().to(torch.float64).flatten().numpy()
    largest = float(np.abs(exact).max(initial=0.0))
    if not largest <= largest_value(num_sites):  # also if it is NaN
        raise OutOfRangeError(
            f"a number of size {largest:.3g}: secure aggregation of {num_sites} sites takes up to "
            f"{largest_value(num_sites):.3g}"
        )
    words: Words = np.rint(np.ldexp(exact, FRACTION_BITS)).astype(np.int64).view(np.uint64)
    return words


def decode(words: Words) -> Tensor:
    """Turn a sum back into real numbers, in double precision.

    >>> decode(encode(torch.tensor([1.5]), 3) + encode(torch.tensor([-2.0]), 3))
    tensor([-0.5000], dtype=torch.float64)
    """
    return torch.from_numpy(np.ldexp(words.view(np.int64).astype(np.float64), -FRACTION_BITS))


def is_plausible(total: Tensor) -> bool:
    """Whether a decoded sum lies in the half of the range that honest sites use."""
    return not bool((total.abs() > LARGEST_SUM).any())
