"""How much privacy a run has spent: ε from Opacus' accountant of Rényi differential privacy."""

from __future__ import annotations

import math
import warnings

ORDERS = [1 + step / 100 for step in range(1, 10)] + [1 + step / 10 for step in range(1, 100)] + [*range(12, 256)]
"""Of Rényi divergence: the best of them gives the bound, and every one of them gives a true one."""


def epsilon(noise: float, steps: int, delta: float, sampled: float = 1.0) -> float:
    """Return ε after so many steps of the Gaussian mechanism; infinite without noise.

    Args:
        noise: The standard deviation in units of the largest contribution.
        steps: How often noisy sums were told.
        delta: The probability with which the promise may fail.
        sampled: The part that is drawn for each step, each one independently (Poisson sampling).

    Example:
        >>> round(epsilon(noise=1.0, steps=1, delta=1e-5), 2)
        4.73
    """
    if not steps:
        return 0.0
    if not noise:
        return math.inf
    from opacus.accountants.analysis import rdp

    spent = rdp.compute_rdp(q=min(1.0, sampled), noise_multiplier=noise, steps=steps, orders=ORDERS)
    with warnings.catch_warnings():  # at either end of the orders the bound is true, but not the best
        warnings.simplefilter("ignore")
        value, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)
    return float(value)
