import itertools

import pytest
import torch
from torch import nn

from harmofl import registry
from harmofl.methods.amplitude_normalization import AmplitudeNormalization
from harmofl.methods.model import Model
from harmofl.models.catalogue import densenet121
from harmofl.models.network import Network, Norm, build_network, set_norm

NORMS: dict[Norm, type[nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "batch-statistics": nn.BatchNorm2d,
    "instance": nn.InstanceNorm2d,
    "group": nn.GroupNorm,
}
NORM_LAYERS = (nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm)


def build(name: str = "densenet-small", norm: Norm = "batch", seed: int = 0, features: int = 4) -> Network:
    return build_network(registry.networks.find(name), channels=3, classes=2, features=features, norm=norm, seed=seed)


# A DenseNet's features: those of the first layer, growth (half of them) for each layer of a block, halved between
# blocks. Small, 4: 4+2·2=8 → 4+4=8 → 4+4=8. 121, 4: 4+6·2=16 → 8+24=32 → 16+48=64 → 32+32=64. U-Net: 4 · 2⁴.
@pytest.mark.parametrize(
    ("name", "logits", "features"),
    [
        ("densenet-small", (2, 2), 8),
        ("densenet121", (2, 2), 64),
        ("unet", (2, 2, 32, 32), 64),
        ("basic-unet", (2, 2, 32, 32), 64),
    ],
)
def test_a_network_gives_logits_and_one_representation_per_image(
    name: str, logits: tuple[int, ...], features: int
) -> None:
    network = build(name).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs, representation = network.represent(images)
        assert outputs.shape == logits
        assert representation.shape == (2, features)
        assert torch.equal(outputs, network(images))


def test_densenet121_has_the_size_of_the_original() -> None:
    network = build_network(densenet121, channels=3, classes=1000, features=64, norm="batch", seed=0)
    assert sum(weight.numel() for weight in network.parameters()) == 7_978_856  # Huang et al., as in torchvision


def test_the_unet_has_the_size_of_the_one_released_with_the_paper() -> None:
    # Two 3 × 3 convolutions with batch norm from i to o features: 9io + 9oo + 4o weights; an up-convolution from 2o
    # to o: 8oo + o. Five levels down from 3 channels, four up, and 2 classes.
    def two(i: int, o: int) -> int:
        return 9 * i * o + 9 * o * o + 4 * o

    widths = [32, 64, 128, 256]
    down = two(3, 32) + sum(two(width, 2 * width) for width in widths)
    up = sum(8 * width * width + width + two(2 * width, width) for width in widths)
    network = build("unet", features=32)
    assert sum(weight.numel() for weight in network.parameters()) == down + up + 2 * 32 + 2 == 7_763_074


@pytest.mark.parametrize("name", ["densenet-small", "densenet121", "unet"])
def test_no_convolution_in_front_of_a_batch_norm_has_a_bias(name: str) -> None:
    network = build(name)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    network.eval().requires_grad_(False)
    order: list[nn.Module] = []
    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.ConvTranspose2d)
    for layer in network.modules():
        if isinstance(layer, kinds):
            layer.register_forward_hook(lambda layer, *_: order.append(layer))
    network(images)
    followed = [one for one, two in itertools.pairwise(order) if isinstance(two, nn.BatchNorm2d)]
    convolutions = [layer for layer in followed if isinstance(layer, nn.Conv2d)]
    assert convolutions
    assert all(layer.bias is None for layer in convolutions)


def test_the_representation_is_the_layers_output_averaged_over_the_image() -> None:
    body = nn.Sequential(nn.Identity(), nn.Flatten(), nn.LazyLinear(1))
    images = torch.arange(8.0).reshape(1, 2, 2, 2)
    body(images)
    _, representation = Network(body, "0").represent(images)
    assert representation.tolist() == [[1.5, 5.5]]


def test_a_representation_leaves_no_hook_behind() -> None:
    network = build()
    network.eval().represent(torch.zeros(1, 3, 32, 32))
    assert not any(layer._forward_hooks for layer in network.modules())


def test_gradients_flow_through_the_representation() -> None:
    network = build()
    _, representation = network.represent(torch.rand(2, 3, 32, 32))
    representation.square().sum().backward()
    first = next(network.parameters())
    assert first.grad is not None
    assert first.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["densenet-small", "unet"])
@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_layer_is_of_the_chosen_kind_and_the_network_runs(name: str, norm: Norm) -> None:
    network = build(name, norm)
    layers = [layer for layer in network.modules() if isinstance(layer, NORM_LAYERS)]
    num_before = sum(isinstance(layer, nn.BatchNorm2d) for layer in build(name).modules())
    assert len(layers) == num_before > 0
    assert all(type(layer) is NORMS[norm] for layer in layers)
    assert network(torch.rand(2, 3, 32, 32)).isfinite().all()


def test_batch_statistics_have_no_weights_and_no_buffers() -> None:
    network = build(norm="batch-statistics")
    layers = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert layers
    assert not any(layer.state_dict() for layer in layers)
    assert not list(network.buffers())


def test_batch_statistics_normalize_test_images_by_the_batch() -> None:
    network = nn.Sequential(nn.BatchNorm2d(1))
    set_norm(network, "batch-statistics")
    images = torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1)
    assert network.eval()(images).flatten().tolist() == pytest.approx([-1, 1], abs=1e-4)


@pytest.mark.parametrize(("channels", "groups"), [(16, 8), (12, 4), (3, 1), (24, 8)])
def test_groups_divide_the_channels(channels: int, groups: int) -> None:
    network = nn.Sequential(nn.BatchNorm2d(channels))
    set_norm(network, "group")
    assert network[0].num_groups == groups


@pytest.mark.parametrize("norm", NORMS)
def test_the_same_seed_gives_the_same_weights_whatever_ran_before(norm: Norm) -> None:
    torch.manual_seed(1)
    first = build(norm=norm, seed=5)
    torch.rand(7)
    second = build(norm=norm, seed=5)
    other = build(norm=norm, seed=6)
    pairs = list(zip(first.state_dict().values(), second.state_dict().values(), strict=True))
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_building_a_network_leaves_randomness_as_it_was() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    build(seed=5)
    assert torch.equal(torch.rand(3), expected)


def test_a_model_harmonizes_before_the_network() -> None:
    harmonizer = AmplitudeNormalization((1, 2, 2), "dc")
    harmonizer.receive({"amplitude": torch.full((1, 1, 1), 4 * 3.0)})
    model = Model(harmonizer, Network(nn.Flatten(), "")).eval()
    assert model(torch.tensor([[[[0.0, 1.0], [1.0, 2.0]]]])).tolist() == [[2, 3, 3, 4]]
    assert {"harmonizer.amplitude", "harmonizer.frozen"} <= model.state_dict().keys()


@pytest.mark.parametrize("name", ["densenet-small", "unet"])
def test_the_representation_alone_is_that_of_a_whole_pass_but_ends_earlier(name: str) -> None:
    network = build_network(registry.networks.find(name), 3, 2, 8, "batch", seed=0).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    reached: list[int] = []
    last_layer = network.body.final_conv if name == "unet" else network.body.class_layers.out
    last_layer.register_forward_hook(lambda *_: reached.append(1))
    with torch.no_grad():
        assert torch.equal(network.representation(images), network.represent(images)[1])
    assert len(reached) == 1  # by the whole pass only
