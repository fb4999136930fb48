import pytest
import torch
from torch import nn

from harmofl.states import add_prefix, evaluating, load, num_bytes, restoring, select_prefix, snapshot


def test_a_snapshot_does_not_follow_the_live_weights() -> None:
    layer = nn.Linear(2, 1)
    taken = snapshot(layer)
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1)
    assert torch.equal(taken["weight"], before)
    assert not taken["weight"].requires_grad


def test_a_snapshot_holds_every_entry_or_the_named_ones() -> None:
    layer = nn.BatchNorm2d(2)
    assert snapshot(layer).keys() == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    assert list(snapshot(layer, ["running_mean"])) == ["running_mean"]


def test_a_snapshot_of_channels_last_weights_is_contiguous() -> None:
    layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    taken = snapshot(layer)["weight"]
    assert not layer.weight.is_contiguous()
    assert taken.is_contiguous()
    assert torch.equal(taken, layer.weight)


def test_load_puts_together_states_that_name_every_entry_once() -> None:
    layer = nn.Linear(2, 1)
    load(layer, {"weight": torch.tensor([[1.0, 2.0]])}, {"bias": torch.tensor([3.0])})
    assert layer(torch.tensor([[1.0, 1.0]])).item() == 6


def test_load_refuses_entries_that_come_twice_or_are_missing_or_unknown() -> None:
    layer = nn.Linear(2, 1)
    whole = snapshot(layer)
    with pytest.raises(ValueError, match="two states name the same entry"):
        load(layer, whole, {"bias": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="bias"):
        load(layer, {"weight": whole["weight"]})
    with pytest.raises(RuntimeError, match="other"):
        load(layer, whole, {"other": torch.zeros(1)})


def test_prefixes_go_on_and_off() -> None:
    state = {"a.b": torch.zeros(1), "c": torch.ones(1)}
    both = add_prefix("own", state) | add_prefix("owner", {"d": torch.ones(1)})
    assert both.keys() == {"own.a.b", "own.c", "owner.d"}
    assert select_prefix("own", both) == state


def test_bytes_are_counted_over_all_tensors() -> None:
    assert (
        num_bytes({"a": torch.zeros(3)}, {"b": torch.zeros(2, dtype=torch.int64), "c": torch.zeros(())}) == 12 + 16 + 4
    )


def test_tensors_of_all_types_are_put_back_bit_for_bit() -> None:
    weight = nn.Parameter(torch.tensor([0.1, -0.0]))
    count, flag = torch.tensor(3), torch.tensor(True)
    with restoring([weight, count, flag]):
        with torch.no_grad():
            weight.mul_(7).add_(1)
        count += 1
        flag.fill_(False)
        assert count.item() == 4
    assert weight.detach().view(torch.int32).tolist() == torch.tensor([0.1, -0.0]).view(torch.int32).tolist()
    assert (count.item(), flag.item()) == (3, True)
    assert weight.is_leaf
    assert weight.requires_grad


def test_tensors_are_put_back_after_an_error() -> None:
    tensor = torch.zeros(2)

    def change() -> None:
        with restoring([tensor]):
            tensor.fill_(9)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        change()
    assert tensor.tolist() == [0, 0]


def test_nothing_to_put_back_is_fine() -> None:
    entered = False
    with restoring([]):
        entered = True
    assert entered


def test_evaluating_changes_the_mode_of_all_parts_and_takes_no_gradients() -> None:
    network = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)).train()
    with evaluating(network):
        assert not any(part.training for part in network.modules())
        assert not network(torch.ones(1, 2)).requires_grad
    assert all(part.training for part in network.modules())
    assert network(torch.ones(1, 2)).requires_grad


def test_evaluating_puts_back_the_mode_of_each_part_even_after_an_error() -> None:
    network = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2)).train()
    network[1].eval()  # a layer that someone keeps fixed
    with pytest.raises(RuntimeError, match="stop"), evaluating(network):
        raise RuntimeError("stop")
    assert [part.training for part in network.modules()] == [True, True, False]
