"""FixBN: statistics that stay as they are once a part of the rounds is over."""

from pathlib import Path

import pytest
import torch
from torch import nn

import harmofl
from harmofl.methods.fixed_statistics import FixedStatistics
from harmofl.methods.layers import Harmonizer
from harmofl.methods.model import Model
from harmofl.methods.pieces import LocalRound, Memory
from harmofl.models.network import Network
from harmofl.states import select_prefix, snapshot
from runs import tensors, train


def one_step(number: int) -> tuple[nn.BatchNorm1d, float]:
    """One step on features 0 and 4 with statistics of mean 1 and variance 4; the loss is the first output."""
    norm = nn.BatchNorm1d(1, eps=1e-12, momentum=0.5)
    norm.running_mean, norm.running_var = torch.tensor([1.0]), torch.tensor([4.0])
    model = Model(Harmonizer(), Network(nn.Sequential(norm), "0"))
    local = LocalRound(number, model, [], 0.1, Memory(), num_rounds=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    features = torch.tensor([[0.0], [4.0]])
    loss = FixedStatistics().start(local)(model.network, optimizer, lambda: model.network(features)[0].sum())
    assert norm.training  # as it was
    return norm, loss.item()


def test_while_it_explores_batches_are_normalized_with_their_own_statistics_which_are_learned() -> None:
    norm, loss = one_step(number=2)
    assert loss == pytest.approx(-1.0)  # (0 − 2) / 2
    assert norm.running_mean.tolist() == [1.5]  # halfway from 1 to 2
    assert norm.running_var.tolist() == [6.0]  # halfway from 4 to 8, the unbiased one
    assert norm.weight.item() == pytest.approx(1.1)  # 1 − 0.1 · (−1)


def test_afterwards_the_received_statistics_are_used_and_stay_but_weights_are_trained() -> None:
    norm, loss = one_step(number=3)
    assert loss == pytest.approx(-0.5)  # (0 − 1) / 2
    assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([1.0], [4.0])
    assert norm.num_batches_tracked.item() == 0
    assert norm.weight.item() == pytest.approx(1.05)  # 1 − 0.1 · (−0.5)
    assert norm.bias.item() == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("exploration", "num_rounds", "last"), [(0.5, 100, 50), (0.7, 10, 7), (0.5, 1, 0), (0, 5, 0), (1, 5, 5)]
)
def test_the_last_round_of_exploration(exploration: float, num_rounds: int, last: int) -> None:
    method = FixedStatistics(exploration=exploration)
    assert [n for n in range(1, num_rounds + 1) if not method.is_fixed(n, num_rounds)] == list(range(1, last + 1))


def test_a_run_ends_with_the_statistics_of_the_last_round_of_exploration(tmp_path: Path) -> None:
    train(tmp_path / "run", "fixbn", rounds=4)
    states = [
        select_prefix("state", tensors(tmp_path / "run" / "checkpoint" / f"round-0000{n}.safetensors")[0])
        for n in (3, 4)
    ]
    same = {name for name in states[0] if torch.equal(states[0][name], states[1][name])}
    assert {name for name in states[0] if "running" in name or "num_batches" in name} == same
    assert same < states[0].keys()


def test_without_batch_norm_it_says_that_there_is_nothing_to_fix() -> None:
    with pytest.raises(harmofl.UsageError, match=r"model\.norm = 'group': FixBN needs 'batch'"):
        harmofl.train("histology", "fixbn", preset="smoke", settings={"model.norm": "group"}, out="unused")


def test_a_layer_that_stands_in_eval_mode_stays_so() -> None:
    norm = nn.BatchNorm1d(1)
    model = Model(Harmonizer(), Network(nn.Sequential(norm), "0"))
    norm.eval()
    before = snapshot(model)
    step = FixedStatistics().start(LocalRound(2, model, [], 0.1, Memory(), num_rounds=2))
    step(model.network, torch.optim.SGD(model.parameters(), lr=0.0), lambda: model.network(torch.ones(2, 1)).sum())
    assert not norm.training
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(model).items())
