from dataclasses import replace

import pytest
import torch
from torch import nn
from toys import Parabolas

from harmofl.methods.catalogue import fedavg, scaffold
from harmofl.methods.control_variates import ControlVariates
from harmofl.methods.layers import Harmonizer
from harmofl.methods.model import Model
from harmofl.methods.pieces import LocalRound, Memory

SITES = [(1.0, 0.0), (3.0, 4.0)]  # the sum of both losses is least at (1 · 0 + 3 · 4) / 4 = 3


def test_two_rounds_by_hand() -> None:
    """One step of 0.1 a round: the mean of the gradients is the gradient at the global x."""
    federation = Parabolas(scaffold, SITES, steps=1, rate=0.1)
    assert federation.round() == pytest.approx((0 + 1.2) / 2)  # gradients 0 and -12, no correction yet
    kept = {site: float(state["step.x"]) for site, state in federation.kept.items()}
    assert kept == pytest.approx({"A": 0.0, "B": -12.0})
    assert float(federation.combined["step.x"]) == pytest.approx(-6.0)
    # At 0.6 the gradients are 0.6 and -10.2; corrected by c - c_i they are -5.4 and -4.2.
    assert federation.round() == pytest.approx(0.6 + 0.1 * (5.4 + 4.2) / 2)
    assert float(federation.combined["step.x"]) == pytest.approx((0.6 - 10.2) / 2)


def test_many_local_steps_lead_to_the_minimum_of_the_sum_where_fedavg_stops_elsewhere() -> None:
    corrected, plain = (Parabolas(method, SITES, steps=10, rate=0.1) for method in (scaffold, fedavg))
    for _ in range(60):
        corrected.round()
        plain.round()
    assert corrected.x == pytest.approx(3.0, abs=1e-6)
    assert abs(plain.x - 3.0) > 0.3


def test_a_site_that_misses_a_round_keeps_its_variate() -> None:
    federation = Parabolas(scaffold, SITES, steps=1, rate=0.1)
    federation.round()
    federation.round(answering="A")  # at 0.6: A's mean gradient goes from 0 to 0.6
    assert float(federation.kept["B"]["step.x"]) == pytest.approx(-12.0)
    assert float(federation.combined["step.x"]) == pytest.approx(-6.0 + 0.6 / 2)


def test_sites_that_are_alike_train_as_with_fedavg() -> None:
    alike = [(2.0, 1.0), (2.0, 1.0)]
    one, other = (Parabolas(method, alike, steps=1, rate=0.1) for method in (scaffold, fedavg))
    assert [one.round() for _ in range(4)] == pytest.approx([other.round() for _ in range(4)])


def test_a_weight_without_a_gradient_is_left_alone() -> None:
    layers = {"used": nn.Linear(1, 1, bias=False), "unused": nn.Linear(1, 1)}
    model = Model(Harmonizer(), nn.ModuleDict(layers))  # type: ignore[arg-type]
    zeros = {name: torch.zeros_like(weight) for name, weight in model.network.named_parameters()}
    local = LocalRound(2, model, list(model.parameters()), 0.1, Memory(kept=zeros, received=zeros))
    step = ControlVariates().start(local)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model.network, optimizer, lambda: layers["used"](torch.ones(1, 1)).sum())
    ControlVariates().finish(replace(local, num_steps=1))
    assert local.memory.kept["used.weight"].tolist() == [[1.0]]
    assert local.memory.kept["unused.weight"].tolist() == [[0.0]]
