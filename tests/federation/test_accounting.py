"""ε against closed forms and published values."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from harmofl.federation.accounting import epsilon


def exact_epsilon(noise: float, steps: int, delta: float) -> float:
    """Of the Gaussian mechanism, composed exactly (Balle and Wang, ICML 2018; Dong et al., 2022)."""
    mu = math.sqrt(steps) / noise

    def excess(value: float) -> float:
        return float(norm.cdf(-value / mu + mu / 2) - math.exp(value) * norm.cdf(-value / mu - mu / 2) - delta)

    return float(brentq(excess, 0, 200))


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (4.0, 16), (10.0, 100), (2.0, 5)])
def test_without_sampling_it_is_a_bound_near_to_the_exact_value(noise: float, steps: int) -> None:
    exact, found = exact_epsilon(noise, steps, 1e-5), epsilon(noise, steps, 1e-5)
    assert exact <= found < 1.15 * exact


def test_with_sampling_it_is_no_worse_than_the_published_moments_accountant() -> None:
    """Abadi et al. (2016): 1.26 for σ = 4, q = 0.01 and 10,000 steps at δ = 1e-5."""
    assert 0.9 < epsilon(4.0, 10_000, 1e-5, sampled=0.01) <= 1.26


def test_no_noise_is_no_promise_and_no_step_costs_nothing() -> None:
    assert epsilon(0.0, 1, 1e-5) == math.inf
    assert epsilon(1.0, 0, 1e-5) == 0.0


def test_more_noise_fewer_steps_and_fewer_images_cost_less() -> None:
    usual = epsilon(1.0, 100, 1e-5, sampled=0.1)
    assert epsilon(2.0, 100, 1e-5, sampled=0.1) < usual
    assert epsilon(1.0, 50, 1e-5, sampled=0.1) < usual
    assert epsilon(1.0, 100, 1e-5, sampled=0.05) < usual
