"""Directions and projections, against numbers worked out by hand."""

import math
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from harmofl.analysis.directions import principal_directions, project, random_direction
from harmofl.models.catalogue import densenet_small
from harmofl.models.network import build_network


def small_network() -> nn.Sequential:
    layers = OrderedDict(
        convolution=nn.Conv2d(2, 3, 2),
        norm=nn.BatchNorm2d(3),
        upward=nn.ConvTranspose2d(3, 4, 2),
        linear=nn.Linear(4, 2),
    )
    return nn.Sequential(layers)


def named(network: nn.Module, direction: list[Tensor]) -> dict[str, Tensor]:
    return dict(zip((name for name, _ in network.named_parameters()), direction, strict=True))


def test_every_filter_moves_by_its_own_norm() -> None:
    network = small_network()
    direction = named(network, random_direction(network, seed=0))
    for number in range(3):
        norm = math.sqrt(sum(value**2 for value in network.convolution.weight[number].flatten().tolist()))
        assert float(direction["convolution.weight"][number].norm()) == pytest.approx(norm, rel=1e-5)
    for number in range(4):  # a transposed convolution's output channels are its second axis
        norm = float(network.upward.weight[:, number].detach().norm())
        assert float(direction["upward.weight"][:, number].norm()) == pytest.approx(norm, rel=1e-5)
    for number in range(2):
        norm = float(network.linear.weight[number].detach().norm())
        assert float(direction["linear.weight"][number].norm()) == pytest.approx(norm, rel=1e-5)


def test_biases_and_norm_layers_do_not_move() -> None:
    network = small_network()
    direction = named(network, random_direction(network, seed=0))
    still = {name for name, tensor in direction.items() if not tensor.any()}
    assert still == {"convolution.bias", "norm.weight", "norm.bias", "upward.bias", "linear.bias"}


@pytest.mark.parametrize("norm", ["batch", "instance", "group"])
def test_norm_layers_of_every_kind_do_not_move(norm: str) -> None:
    network = build_network(densenet_small, 3, 2, 8, norm, seed=0)  # type: ignore[arg-type]
    direction = named(network, random_direction(network, seed=0))
    of_norms = [
        f"{path}.{name}"
        for path, layer in network.named_modules()
        if isinstance(layer, (nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm))
        for name, _ in layer.named_parameters()
    ]
    assert of_norms
    assert not any(direction[name].any() for name in of_norms)


def test_a_filter_of_zeros_stays() -> None:
    network = nn.Linear(3, 2)
    with torch.no_grad():
        network.weight[0] = 0
    weight, _ = random_direction(network, seed=0)
    assert not weight[0].any()
    assert weight.isfinite().all()


def test_networks_of_one_architecture_get_the_same_draw() -> None:
    """A network with all weights doubled has a direction twice as long, and nothing else differs."""
    network, doubled = small_network(), small_network()
    doubled.load_state_dict({name: 2 * tensor for name, tensor in network.state_dict().items()})
    for one, other in zip(random_direction(network, 3), random_direction(doubled, 3), strict=True):
        torch.testing.assert_close(2 * one, other)
    assert not torch.equal(random_direction(network, 3)[0], random_direction(network, 4)[0])


def test_projection_onto_a_slanted_plane() -> None:
    """Along (1, 0, 0) and (1, 1, 0) the step (3, 2, 6) has coordinates (1, 2); √13 of its length 7 lie there."""
    plane = [[torch.tensor([1.0, 0.0]), torch.tensor([0.0])], [torch.tensor([1.0, 1.0]), torch.tensor([0.0])]]
    coordinates, share = project([torch.tensor([3.0, 2.0]), torch.tensor([6.0])], plane)
    assert coordinates.tolist() == pytest.approx([1.0, 2.0])
    assert share == pytest.approx(math.sqrt(13) / 7)


def test_a_step_of_length_zero_has_no_share() -> None:
    plane = [[torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 1.0])]]
    coordinates, share = project([torch.zeros(2)], plane)
    assert (coordinates.tolist(), share) == ([0.0, 0.0], 0.0)


def test_principal_directions_hold_steps_of_a_plane_completely() -> None:
    """Steps along (3, 0, 4) and, shorter, (0, 1, 0): the longer ones come first, each direction has length 1."""
    steps = [[torch.tensor([[-6.0, 0.0, -8.0]])], [torch.tensor([[3.0, 0.0, 4.0]])], [torch.tensor([[0.0, -1.0, 0.0]])]]
    first, second = principal_directions(steps)
    assert first[0].flatten().tolist() == pytest.approx([-0.6, 0.0, -0.8], abs=1e-6)  # towards the longest step
    assert second[0].flatten().tolist() == pytest.approx([0.0, -1.0, 0.0], abs=1e-6)
    assert [project(step, [first, second])[1] for step in steps] == pytest.approx([1.0, 1.0, 1.0])
