from dataclasses import replace

import pytest
import torch
from toys import Parabolas

from harmofl.methods.catalogue import fedavg, feddyn
from harmofl.methods.dynamic_regularization import DynamicAverage, DynamicRegularizer

SITES = [(1.0, 0.0), (3.0, 4.0)]  # the sum of both losses is least at 3
STRONG = replace(feddyn, penalties=(DynamicRegularizer(alpha=1.0),))


def test_two_rounds_by_hand() -> None:
    """One step of 0.1 a round from 0; the penalty has no gradient at the start of a round but that of its slope."""
    federation = Parabolas(STRONG, SITES, steps=1, rate=0.1)
    # A stays at 0, B goes to 1.2: the mean move is 0.6, and h/alpha = -0.6 adds another 0.6.
    assert federation.round() == pytest.approx(1.2)
    assert {site: float(state["penalty-0.x"]) for site, state in federation.kept.items()} == pytest.approx(
        {"A": 0.0, "B": -1.2}
    )
    # At 1.2 the gradients are 1.2 and -8.4; those of -slope * x are 0 and 1.2: A moves by -0.12, B by 0.72.
    # Mean move 0.3, all moves together 0.9.
    assert federation.round() == pytest.approx(1.2 + 0.3 + 0.9)


def test_the_sites_agree_where_the_sum_is_least_and_fedavg_stops_elsewhere() -> None:
    dynamic, plain = (Parabolas(method, SITES, steps=10, rate=0.2) for method in (STRONG, fedavg))
    for _ in range(40):
        dynamic.round()
        plain.round()
    assert dynamic.x == pytest.approx(3.0, abs=1e-3)
    assert abs(plain.x - 3.0) > 0.3


def test_the_server_remembers_the_sum_of_the_mean_moves() -> None:
    change, memory = DynamicAverage().move_for({"w": torch.tensor([1.0])}, {"w": torch.tensor([0.5])}, 1.0, 1.0)
    assert change["w"].tolist() == [2.5]
    assert memory["w"].tolist() == [1.5]


def test_sites_that_did_not_answer_count_as_not_moved() -> None:
    """One of four sites answers and moves by 1: the mean over all sites of what they moved is 0.25."""
    change, memory = DynamicAverage().move_for({"w": torch.tensor([1.0])}, {"w": torch.tensor([0.5])}, 1.0, 0.25)
    assert memory["w"].tolist() == [0.75]
    assert change["w"].tolist() == [1.75]  # to the mean of those that answered, and by h


def test_the_servers_memory_stays_the_mean_of_the_sites_slopes() -> None:
    """h = −α · mean of all moves, and each λ = −α · the site's own moves: h is the mean of the λ, whoever answers."""
    federation = Parabolas(STRONG, SITES, steps=1, rate=0.1)
    for answering in ("AB", "B", "A", "AB"):
        federation.round(answering)
        slopes = [float(federation.kept[site].get("penalty-0.x", torch.zeros(()))) for site in "AB"]
        assert -float(federation.memory["x"]) == pytest.approx(sum(slopes) / 2)
