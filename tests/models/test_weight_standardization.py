"""Networks without norm layers."""

import math

import pytest
import torch
from torch import nn

from harmofl import registry
from harmofl.models.network import build_network
from harmofl.models.weight_standardization import StandardizedConv2d, StandardizedWeights, remove_norms


def standardized(*weights: float) -> StandardizedConv2d:
    """A convolution of pixels in a row with these weights, in front of a batch norm and a last layer."""
    network = nn.Sequential(nn.Conv2d(1, 1, (1, len(weights)), bias=False), nn.BatchNorm2d(1), nn.Conv2d(1, 2, 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor(weights).view(1, 1, 1, -1))
    remove_norms(network)
    assert isinstance(network[1], nn.Identity)
    assert type(network[2]) is nn.Conv2d  # it makes logits
    return network[0]  # type: ignore[return-value]


def test_weights_by_hand() -> None:
    """1 and 3: mean 2, variance 1, two of them: ∓1/√2, times γ."""
    layer = standardized(1.0, 3.0)
    gamma = math.sqrt(2 / (1 - 1 / math.pi))
    expected = [-gamma / math.sqrt(2), gamma / math.sqrt(2)]
    assert layer.standardized().flatten().tolist() == pytest.approx(expected)
    assert layer(torch.tensor([[[[0.0, 1.0]]]])).item() == pytest.approx(expected[1])
    with torch.no_grad():
        layer.gain.fill_(2.0)
        layer.bias.fill_(0.5)
        layer.weight.mul_(7).add_(1)  # neither scale nor offset matters
    assert layer(torch.tensor([[[[0.0, 1.0]]]])).item() == pytest.approx(2 * expected[1] + 0.5, rel=1e-5)


def test_constant_weights_give_nothing_but_finite_gradients() -> None:
    layer = standardized(0.5, 0.5)
    layer(torch.ones(1, 1, 1, 2)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.isfinite().all()


def test_features_of_unit_variance_keep_it_through_a_relu_and_a_convolution() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(64, 64, 3, bias=False), nn.BatchNorm2d(64), nn.Conv2d(64, 1, 1))
    remove_norms(network)
    features = network[0](torch.randn(4, 64, 16, 16).relu())
    assert features.var(dim=(0, 2, 3)).mean().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", ["densenet121", "densenet-small", "unet"])
def test_our_networks_do_without_norms_and_without_other_images(name: str) -> None:
    entry = registry.networks.find(name)
    network = build_network(entry, 3, 2, 4, "weight-standardization", 0)
    layers = list(network.modules())
    assert not any("Norm" in type(layer).__name__ for layer in layers)
    plain = [layer for layer in layers if type(layer) is nn.Conv2d]
    assert [layer.out_channels for layer in plain] == ([2] if "segmentation" in entry.kinds else [])
    assert sum(isinstance(layer, StandardizedWeights) for layer in layers) > 5
    images = torch.rand(3, 3, 32, 32)
    network.train()
    together = network(images)
    torch.testing.assert_close(network(images[:1]), together[:1], rtol=1e-4, atol=1e-5)
    assert together.std() > 1e-3
