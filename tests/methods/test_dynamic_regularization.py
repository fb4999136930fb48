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
    dynamic, plain = (Parabolas(method, SITES, steps=50, rate=0.05) for method in (STRONG, fedavg))
    for _ in range(80):
        dynamic.round()
        plain.round()
    assert dynamic.x == pytest.approx(3.0, abs=1e-3)
    assert abs(plain.x - 3.0) > 0.3


def test_the_server_remembers_the_sum_of_the_mean_moves() -> None:
    change, memory = DynamicAverage().move({"w": torch.tensor([1.0])}, {"w": torch.tensor([0.5])}, 1.0)
    assert change["w"].tolist() == [2.5]
    assert memory["w"].tolist() == [1.5]
