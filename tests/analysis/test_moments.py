import math

import pytest
import torch

from harmofl.analysis.appearance import statistics
from harmofl.analysis.moments import PER_CHANNEL, differences, probe_moments, without_mean
from harmofl.analysis.survey import Moments


def halves(mean: list[float], variance: float = 1.0, images: int = 100) -> list[Moments]:
    covariance = [[variance if row == column else 0.0 for column in range(len(mean))] for row in range(len(mean))]
    return [Moments(images=images, mean=mean, covariance=covariance)] * 2


@pytest.mark.parametrize("distance", [1.0, 2.0, 4.0])
def test_two_normal_distributions_are_told_apart_as_often_as_they_should_be(distance: float) -> None:
    probe = probe_moments({"A": halves([0.0]), "B": halves([distance])})
    expected = 0.5 * (1 + math.erf(distance / 2 / math.sqrt(2)))  # Φ(d/2): the better half of each
    assert probe.accuracy == pytest.approx(expected, abs=0.015)


def test_hospitals_that_are_alike_are_guessed_by_chance_and_others_surely() -> None:
    alike = {site: [m.model_copy(update={"mean": [s]}) for m, s in zip(halves([0.0]), (e, -e), strict=True)]
             for site, e in (("A", 0.1), ("B", -0.1), ("C", 0.02))}  # fmt: skip
    assert probe_moments(alike).accuracy == pytest.approx(1 / 3, abs=0.07)
    far = {site: halves([place, 0.0], 0.01) for site, place in (("A", 0.0), ("B", 5.0), ("C", 10.0))}
    probe = probe_moments(far)
    assert probe.per_site == (1.0, 1.0, 1.0)
    assert probe.chance == pytest.approx(1 / 3)


def test_what_differs_from_half_to_half_is_not_taken_for_the_hospital() -> None:
    # Each hospital's halves differ by as much as the hospitals: what one half says does not hold in the other.
    torn = {"A": [halves([3.0])[0], halves([-3.0])[0]], "B": [halves([-3.0])[0], halves([3.0])[0]]}
    assert probe_moments(torn).accuracy < 0.05


def test_without_the_mean_descriptions_do_not_change_with_brightness() -> None:
    images = torch.rand(5, 2, 16, 16, generator=torch.Generator().manual_seed(0)) / 2
    change = without_mean(2 * PER_CHANNEL)
    assert change.shape == (2 * PER_CHANNEL - 2, 2 * PER_CHANNEL)
    before, after = (statistics(each) @ change.T for each in (images, images + 0.3))
    assert torch.allclose(before, after, atol=1e-5)
    assert not torch.allclose(statistics(images), statistics(images + 0.3), atol=0.1)
    contrast = statistics(0.5 * images) @ change.T
    assert not torch.allclose(before, contrast, atol=0.01)


def test_differences_are_in_spreads_of_single_images() -> None:
    plain, bright = [0.0] * PER_CHANNEL, [0.0] * PER_CHANNEL
    bright[0], bright[1] = 6.0, -1.0
    found = differences({"A": halves(plain, 4.0), "B": halves(plain, 4.0), "C": halves(bright, 4.0)})
    # C lies 6 above the mean of the others, whose images spread by 2; A lies 3 below the mean of B and C.
    assert found["C"] == {"brightness": 3.0, "contrast": -0.5, "coarse structure": 0.0, "sharpness and noise": 0.0}
    assert found["A"]["brightness"] == -1.5
