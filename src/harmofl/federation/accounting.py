"""How much privacy a run has spent: ε from Opacus' accountant of Rényi differential privacy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

ORDERS = [1 + step / 100 for step in range(1, 10)] + [1 + step / 10 for step in range(1, 100)] + [*range(12, 256)]
"""Of Rényi divergence: the best of them gives the bound, and every one of them gives a true one."""


@dataclass(frozen=True)
class Release:
    """Noisy numbers that are released a number of times, each with the Gaussian mechanism."""

    noise: float
    """The standard deviation in units of the largest contribution."""
    steps: int
    """How often they are told."""
    sampled: float = 1.0
    """The part that is drawn for each step, each one independently (Poisson sampling)."""


def total_epsilon(releases: Iterable[Release], delta: float) -> float:
    """Return ε of all releases together; infinite if one has no noise.

    Args:
        releases: What is told: Rényi divergences of single ones add up, at every order.
        delta: The probability with which the promise may fail.

    Example:
        >>> updates, measurement = Release(noise=1.0, steps=8), Release(noise=2.0, steps=1)
        >>> round(total_epsilon([updates], 1e-5), 2), round(total_epsilon([updates, measurement], 1e-5), 2)
        (16.51, 16.84)
    """
    told = [each for each in releases if each.steps]
    if not told:
        return 0.0
    if not all(each.noise for each in told):
        return math.inf
    from opacus.accountants.analysis import rdp

    spent = sum(
        rdp.compute_rdp(q=min(1.0, each.sampled), noise_multiplier=each.noise, steps=each.steps, orders=ORDERS)
        for each in told
    )
    with warnings.catch_warnings():  # at either end of the orders the bound is true, but not the best
        warnings.simplefilter("ignore")
        value, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)
    return float(value)


def epsilon(noise: float, steps: int, delta: float, sampled: float = 1.0) -> float:
    """Return ε of a single release.

    Example:
        >>> round(epsilon(noise=1.0, steps=1, delta=1e-5), 2)
        4.73
    """
    return total_epsilon([Release(noise, steps, sampled)], delta)
