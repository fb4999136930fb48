import pytest
from torch import nn

from harmofl import registry
from harmofl.methods.sharing import (
    all_but_batch_norm,
    all_but_last_layer,
    all_but_statistics,
    everything,
    nothing,
    running_statistics,
)
from harmofl.models.catalogue import densenet_small
from harmofl.models.network import build_network


class Block(nn.Module):
    """Batch norm under a name without "bn", and a convolution under a name with it."""

    def __init__(self) -> None:
        super().__init__()
        self.bn_free = nn.Conv2d(1, 2, 3)
        self.scaling = nn.BatchNorm2d(2)
        self.inner = nn.Sequential(
            nn.Linear(2, 2), nn.BatchNorm1d(2), nn.GroupNorm(1, 2), nn.InstanceNorm2d(2, affine=True)
        )


def test_everything_is_every_weight_and_buffer() -> None:
    network = Block()
    assert everything(network) == list(network.state_dict())


def test_nothing_is_nothing() -> None:
    assert nothing(Block()) == []


def test_batch_norm_is_found_by_its_type_whatever_its_name() -> None:
    assert all_but_batch_norm(nn.Sequential(Block())) == [
        "0.bn_free.weight",
        "0.bn_free.bias",
        "0.inner.0.weight",
        "0.inner.0.bias",
        "0.inner.2.weight",
        "0.inner.2.bias",
        "0.inner.3.weight",
        "0.inner.3.bias",
    ]


def test_a_network_that_is_batch_norm_shares_nothing() -> None:
    assert all_but_batch_norm(nn.BatchNorm2d(2)) == []


@pytest.mark.parametrize("name", ["densenet-small", "unet"])
def test_batch_norm_of_the_networks_stays_at_the_site(name: str) -> None:
    network = build_network(registry.networks.find(name), channels=1, classes=2, features=4, norm="batch", seed=0)
    shared = set(all_but_batch_norm(network))
    layers = dict(network.named_modules())
    owners = {entry: layers[entry.rpartition(".")[0]] for entry in network.state_dict()}
    kept = {entry for entry, layer in owners.items() if type(layer) is nn.BatchNorm2d}
    num_layers = sum(type(layer) is nn.BatchNorm2d for layer in layers.values())
    assert shared == network.state_dict().keys() - kept
    assert len(kept) == 5 * num_layers > 0  # weight, bias, mean, variance, count


@pytest.mark.parametrize("norm", ["group", "instance", "batch-statistics"])
def test_a_network_without_batch_norm_state_shares_everything(norm: str) -> None:
    network = build_network(densenet_small, channels=1, classes=2, features=4, norm=norm, seed=0)  # type: ignore[arg-type]
    assert all_but_batch_norm(network) == everything(network)


def test_running_statistics_are_found_by_type_too() -> None:
    assert running_statistics(nn.Sequential(Block())) == {
        "0.scaling.running_var": "0.scaling.running_mean",
        "0.inner.1.running_var": "0.inner.1.running_mean",
    }
    assert running_statistics(nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False))) == {}


def test_silobn_keeps_only_the_statistics_of_batch_norm() -> None:
    network = nn.Sequential(Block())
    own = set(network.state_dict()) - set(all_but_statistics(network))
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert own == {f"0.{layer}.{name}" for layer in ("scaling", "inner.1") for name in statistics}


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("unet", "body.final_conv"),
        ("densenet-small", "body.class_layers.out"),
        ("densenet121", "body.class_layers.out"),
    ],
)
def test_fedper_keeps_the_layer_that_makes_the_logits(name: str, last: str) -> None:
    network = build_network(registry.networks.find(name), 3, 2, 4, "batch", 0)
    assert set(network.state_dict()) - set(all_but_last_layer(network)) == {f"{last}.weight", f"{last}.bias"}
