from collections.abc import Sequence

import pytest
import torch

from harmofl.methods.aggregation import start_aggregation
from harmofl.methods.robust_rules import GeometricMedian, Krum, Median, MultiKrum, TrimmedMean
from harmofl.methods.server_rules import ServerRule, Update, combine_entries

START = {"weight": torch.tensor([1.0]), "mean": torch.tensor([10.0]), "count": torch.tensor(7)}


def updates(*values: Sequence[float]) -> list[Update]:
    return [Update({"w": torch.tensor(value, dtype=torch.float64)}, {}) for value in values]


def combine(rule: ServerRule, *values: Sequence[float]) -> list[float]:
    changes: list[float] = rule.combine(updates(*values), [1 / len(values)] * len(values)).weights["w"].tolist()
    return changes


def test_the_median_is_taken_number_by_number() -> None:
    assert combine(Median(), [1.0, 9.0], [2.0, -5.0], [99.0, 0.0]) == [2.0, 0.0]
    assert combine(Median(), [1.0], [2.0], [4.0], [99.0]) == [3.0]


def test_the_trimmed_mean_leaves_out_both_ends_of_every_number() -> None:
    values = ([1.0, 5.0], [2.0, 1.0], [3.0, 2.0], [4.0, 3.0], [1000.0, -1000.0])
    assert combine(TrimmedMean(trimmed=0.2), *values) == [3.0, 2.0]
    assert combine(TrimmedMean(trimmed=0.0), *values) == pytest.approx([202.0, -197.8])


def test_krum_takes_the_site_with_the_nearest_neighbours() -> None:
    # With one outlier among five, two neighbours count. Sums of squared distances: 0: 1 + 4; 1: 1 + 1; 2: 1 + 4.
    assert combine(Krum(outliers=1), [0.0], [1.0], [2.0], [9.0], [100.0]) == [1.0]


def test_multi_krum_averages_all_but_the_farthest() -> None:
    values = [0.0], [1.0], [2.0], [9.0], [100.0]
    assert combine(MultiKrum(outliers=1), *values) == [3.0]
    assert combine(MultiKrum(outliers=2), *values) == [1.0]
    assert combine(MultiKrum(outliers=0), *values) == pytest.approx([22.4])


def test_multi_krum_trims_statistics_by_number() -> None:
    """The site that lies in its statistics is near to the others in its weights."""
    aggregation = start_aggregation(MultiKrum(outliers=1), START, trainable=["weight"])
    for weight, mean in ((2.0, 20.0), (2.1, 1e30), (1.9, 19.0), (2.0, 21.0), (50.0, 22.0)):
        site = {"weight": torch.tensor([weight]), "mean": torch.tensor([mean]), "count": torch.tensor(9)}
        aggregation.add(site, 1.0, num_steps=3, momentum=0.9)
    state, _ = aggregation.finish({}, 1.0)
    assert state["weight"].item() == pytest.approx(2.0)
    assert state["mean"].item() == pytest.approx(21.0)


def test_the_geometric_median_is_the_vertex_that_sees_the_others_at_a_wide_angle() -> None:
    """Of three points whose triangle has an angle above 120 degrees, that corner has the least sum of distances."""
    assert combine(GeometricMedian(iterations=200), [0.0, 0.0], [10.0, 1.0], [-10.0, 1.0]) == pytest.approx(
        [0.0, 0.0], abs=1e-3
    )


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trimmed=0.25), Krum(), MultiKrum(), GeometricMedian()])
def test_one_site_that_sends_nonsense_does_not_spoil_the_global_model(rule: ServerRule) -> None:
    aggregation = start_aggregation(rule, START, trainable=["weight"])
    for weight, mean in ((2.0, 20.0), (2.1, 20.5), (1.9, 19.5), (-1e30, 1e30)):
        site = {"weight": torch.tensor([weight]), "mean": torch.tensor([mean]), "count": torch.tensor(9)}
        aggregation.add(site, 1.0, num_steps=3, momentum=0.9)
    state, _ = aggregation.finish({}, 1.0)
    assert state["weight"].item() == pytest.approx(2.0, abs=0.11)
    assert state["mean"].item() == pytest.approx(20.0, abs=0.6)
    assert state["count"].item() == 9


def test_a_rule_that_needs_every_update_must_say_how_it_combines_them() -> None:
    class Unfinished(ServerRule):
        needs_every_update = True

    with pytest.raises(NotImplementedError, match=r"Unfinished has no combine\(\)"):
        combine(Unfinished(), [1.0])


@pytest.mark.parametrize(
    ("rule", "settings"),
    [(TrimmedMean, {"trimmed": 0.5}), (Krum, {"outliers": -1}), (GeometricMedian, {"iterations": 0})],
)
def test_settings_out_of_range_are_refused(rule: type, settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        rule(**settings)


def test_a_rule_that_sees_every_update_rescales_by_the_effective_steps_as_sums_do() -> None:
    """Σ pᵢaᵢ · Σ pᵢ(θᵢ − θ)/aᵢ, whichever way the sum is made: 10 steps each, moves of 10 and 20."""

    class Steps(ServerRule):
        def effective_steps(self, num_steps: int, momentum: float) -> float:
            return float(num_steps)

    class EveryUpdate(Steps):
        needs_every_update = True

        def combine(self, updates: Sequence[Update], shares: Sequence[float]) -> Update:
            return combine_entries(updates, lambda values: values.mean(dim=0))

    for rule in (Steps(), EveryUpdate()):
        aggregation = start_aggregation(rule, {"weight": torch.tensor([0.0])}, trainable=["weight"])
        for move in (10.0, 20.0):
            aggregation.add({"weight": torch.tensor([move])}, 1.0, num_steps=10, momentum=0.0)
        assert aggregation.finish({}, 1.0)[0]["weight"].item() == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("rule", "fewest"),
    [
        (Median(), 3),
        (GeometricMedian(), 3),
        (TrimmedMean(trimmed=0.2), 5),
        (TrimmedMean(trimmed=0.3), 4),
        (TrimmedMean(trimmed=0.0), 1),
        (Krum(outliers=2), 7),
    ],
)
def test_each_rule_says_how_many_sites_it_needs(rule: ServerRule, fewest: int) -> None:
    assert rule.fewest_sites == fewest


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trimmed=0.25), Krum(), MultiKrum(), GeometricMedian()])
def test_a_site_whose_weights_are_like_the_others_cannot_send_any_statistics(rule: ServerRule) -> None:
    aggregation = start_aggregation(rule, START, trainable=["weight"])
    for weight, mean in ((2.0, 20.0), (2.1, 20.5), (1.9, 19.5), (2.0, 1e30)):
        site = {"weight": torch.tensor([weight]), "mean": torch.tensor([mean]), "count": torch.tensor(9)}
        aggregation.add(site, 1.0, num_steps=3, momentum=0.9)
    assert aggregation.finish({}, 1.0)[0]["mean"].item() == pytest.approx(20.0, abs=0.6)
