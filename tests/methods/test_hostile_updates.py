"""One of six sites is hostile for a whole run: the final model is as good as without it.

The sites are clouds of points in a plane, seen by each in its own units, and the model is a real one with batch norm.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from harmofl import registry
from harmofl.federation.bounds import BoundedRound
from harmofl.federation.messages import Reply
from harmofl.methods.aggregation import start_aggregation
from harmofl.methods.channel import Combining
from harmofl.methods.server_rules import Average, ServerRule
from harmofl.settings.schema import FederationSettings
from harmofl.states import State, load, snapshot

ROUNDS, HOSTILE = 8, 5
Attack = Callable[[State, State, int], State]


def cloud(site: int, count: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(site)
    labels = torch.randint(2, (count,), generator=generator)
    points = torch.randn(count, 8, generator=generator) + 0.9 * (2 * labels - 1)[:, None]
    return points * (1 + 0.2 * site) + 0.1 * site, labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 2))


def train(start: State, site: int) -> State:
    model = network()
    load(model, start)
    points, labels = cloud(site)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.arange(120).split(24):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points[batch]), labels[batch]).backward()
        optimizer.step()
    return snapshot(model)


def accuracy(state: State) -> float:
    """In percent, over the honest sites' other points."""
    model = network().eval()
    load(model, state)
    with torch.no_grad():
        right = [(model(points).argmax(1) == labels).float().mean() for points, labels in map(held_out, range(HOSTILE))]
    return 100 * float(torch.stack(right).mean())


def held_out(site: int) -> tuple[Tensor, Tensor]:
    points, labels = cloud(site, 1120)
    return points[120:], labels[120:]


def federate(sites: int, rule: ServerRule, attack: Attack | None = None, clip: float | None = None) -> float:
    model = network()
    trainable, state, memory = [name for name, _ in model.named_parameters()], snapshot(model), {}  # type: ignore[var-annotated]
    for number in range(ROUNDS):
        aggregation = start_aggregation(rule, state, trainable)
        round_ = BoundedRound(aggregation, Combining({}, {}, sites), FederationSettings(clip_updates=clip), 0.0)
        for site in range(sites):
            end = train(state, site)
            if attack and site == HOSTILE:
                end = attack(state, end, number)
            round_.add(Reply(f"site-{site}", state=end, num_examples=120, num_steps=5))
        round_.finish()
        state, memory = aggregation.finish(memory, 1.0)
    return accuracy(state)


def scaled(by: float) -> Attack:
    def attack(start: State, end: State, number: int) -> State:
        return {
            name: (start[name] + by * (end[name] - start[name])).abs_()
            if name.endswith("running_var")
            else (start[name] + by * (end[name] - start[name])).to(end[name].dtype)
            for name in end
        }

    return attack


def random(start: State, end: State, number: int) -> State:
    generator = torch.Generator().manual_seed(number)
    noise = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in end.items()}
    moved = {name: (start[name] + noise[name]).to(tensor.dtype) for name, tensor in end.items()}
    return moved | {name: tensor.abs() for name, tensor in moved.items() if name.endswith("running_var")}


ATTACKS = {"flips": scaled(-1), "flips and scales": scaled(-20), "scales": scaled(1000), "random": random}
DEFENCES = {
    "clipping": (Average(), 1.0),
    **{
        name: (registry.methods.find(name).server_rule, None)
        for name in ("median", "trimmed-mean", "krum", "multi-krum", "geometric-median")
    },
}


@pytest.fixture(scope="module")
def without() -> float:
    """The score of the run without the hostile site."""
    return federate(HOSTILE, Average())


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_hostile_site_costs_less_than_a_point(without: float, attack: str, defence: str) -> None:
    rule, clip = DEFENCES[defence]
    assert without > 90
    assert federate(6, rule, ATTACKS[attack], clip) > without - 1


def test_the_plain_mean_alone_would_be_spoiled(without: float) -> None:
    assert federate(6, Average(), scaled(-20)) < without - 10
