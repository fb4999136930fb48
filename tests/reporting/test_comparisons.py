from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import permutation_test, wilcoxon

from harmofl.reporting.comparisons import compare, sign_flip_p, to_markdown, wilcoxon_p
from harmofl.reporting.tables import MethodScores, methods_of
from harmofl.runs.finished import FinishedRun

MakeRun = Callable[..., FinishedRun]
SITES = "ABC"


def two_methods(make_run: MakeRun, gains: list[list[float]]) -> list[MethodScores]:
    """FedAvg and HarmoFL, whose scores differ by these parts of one at each site, seed by seed."""
    runs = [make_run("fedavg", dict.fromkeys(SITES, 0.5), seed=seed) for seed in range(len(gains))]
    for seed, own in enumerate(gains):
        scores = {site: 0.5 + gain for site, gain in zip(SITES, own, strict=True)}
        runs.append(make_run("harmofl", scores, seed=seed))
    return methods_of(runs)


def test_six_pairs_that_all_agree_are_two_of_sixty_four_sign_patterns(make_run: MakeRun) -> None:
    fedavg, harmofl = two_methods(make_run, [[0.01, 0.02, 0.03], [0.04, 0.05, 0.06]])
    found = compare(harmofl, fedavg)
    assert found
    assert (found.num_pairs, found.num_ahead) == (6, 6)
    assert found.difference == pytest.approx(3.5)
    assert found.sign_flip_p == found.wilcoxon_p == 2 / 64
    assert found.more_than_noise
    assert found.sentence == (
        "HarmoFL against FedAvg: +3.50 points, ahead in 6 of 6 pairs (sign-flip test p = 0.031, "
        "Wilcoxon signed-rank test p = 0.031): more than noise."
    )


def test_one_large_difference_among_small_ones_could_be_noise(make_run: MakeRun) -> None:
    fedavg, harmofl = two_methods(make_run, [[0.30, 0.01, -0.02], [0.01, -0.01, 0.02]])
    found = compare(harmofl, fedavg)
    assert found
    assert not found.more_than_noise
    assert found.verdict == "this could be noise"


def test_few_pairs_are_never_more_than_noise(make_run: MakeRun) -> None:
    fedavg, harmofl = two_methods(make_run, [[0.2, 0.2, 0.2]])
    found = compare(harmofl, fedavg)
    assert found
    assert found.verdict == "too few pairs to tell"
    assert (
        "| HarmoFL | FedAvg | +20.00 | 3 of 3 pairs | p = 0.250 | p = 0.250 | too few pairs to tell |"
        in to_markdown([found])
    )


def test_only_sites_and_seeds_that_both_have_are_paired(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", {"A": 0.5, "B": 0.5}, seed=0),
        make_run("harmofl", {"A": 0.6, "C": 0.9}, seed=0),
        make_run("harmofl", {"A": 0.9, "C": 0.9}, seed=1),
    ]
    fedavg, harmofl = methods_of(runs)
    found = compare(harmofl, fedavg)
    assert found
    assert (found.num_pairs, found.difference) == (1, pytest.approx(10.0))
    assert compare(MethodScores("other", (runs[2],)), fedavg) is None


def test_differences_that_single_precision_parts_are_equal(make_run: MakeRun) -> None:
    right = np.array([[181, 177, 179], [185, 164, 178], [188, 180, 173], [186, 176, 177], [180, 181, 175]])
    gains = np.array([[1, 3, 0], [1, -2, -4], [-1, 0, -3], [0, -7, -3], [-6, 0, -3]])  # of 200 images each

    def accuracies(counts: np.ndarray) -> list[float]:
        return [float(np.float32(count) / np.float32(200)) for count in counts]

    runs = [
        make_run(name, dict(zip(SITES, accuracies(counts), strict=True)), seed=seed)
        for name, each in (("fedavg", right), ("harmofl", right + gains))
        for seed, counts in enumerate(each)
    ]
    fedavg, harmofl = methods_of(runs)
    found = compare(harmofl, fedavg)
    assert found
    assert found.sign_flip_p == sign_flip_p(gains.flatten().astype(np.float64)) == pytest.approx(0.0508, abs=1e-4)
    assert found.wilcoxon_p == wilcoxon_p(gains.flatten().astype(np.float64))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_images", [78, 640])
@pytest.mark.parametrize("gains", [[[-1, 1, 1], [1, 1, 1], [1, 1, 1]], [[1, 2, 0], [3, -1, 2], [1, -2, 3]]])
def test_the_same_gains_give_the_same_answer_whatever_the_scores(
    make_run: MakeRun, gains: list[list[int]], num_images: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    runs = []
    for number, own in enumerate(gains):  # in images
        right = random.integers(num_images // 2, num_images - 3, len(own))
        for name, counts in (("fedavg", right), ("harmofl", right + own)):
            accuracies = (counts.astype(np.float32) / np.float32(num_images)).tolist()
            runs.append(make_run(name, dict(zip(SITES, accuracies, strict=True)), seed=number))
    fedavg, harmofl = methods_of(runs)
    found, expected = compare(harmofl, fedavg), np.array(gains, dtype=np.float64).flatten()
    assert found
    assert (found.sign_flip_p, found.wilcoxon_p) == (sign_flip_p(expected), wilcoxon_p(expected))
    assert found.num_ahead == (expected > 0).sum()


@pytest.mark.parametrize("seed", range(3))
def test_both_tests_agree_with_scipys(seed: int) -> None:
    differences = np.random.default_rng(seed).normal(0.5, 1.0, size=9)
    expected = permutation_test((differences, np.zeros(9)), lambda a, b: np.mean(a - b), permutation_type="samples")
    assert sign_flip_p(differences) == pytest.approx(expected.pvalue)
    assert wilcoxon_p(differences) == pytest.approx(wilcoxon(differences, method="exact").pvalue)


def test_more_pairs_than_can_be_counted_are_sampled() -> None:
    differences = np.random.default_rng(0).normal(0.3, 1.0, size=30)
    exact = wilcoxon(differences, method="exact").pvalue
    assert wilcoxon_p(differences) == pytest.approx(exact, abs=0.01)
    assert sign_flip_p(differences) == sign_flip_p(differences)


def test_no_difference_at_all_is_noise() -> None:
    assert sign_flip_p(np.zeros(8)) == wilcoxon_p(np.zeros(8)) == 1.0
