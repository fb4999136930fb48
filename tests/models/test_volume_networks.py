import pytest
import torch
from torch import nn

from harmofl import registry
from harmofl.errors import UsageError
from harmofl.methods.sharing import all_but_batch_norm
from harmofl.models.network import Network, Norm, build_network
from harmofl.models.volumes import Volume, plan_strides

SMALL = Volume((16, 16, 16))
NORMS: dict[Norm, type[nn.Module]] = {
    "batch": nn.BatchNorm3d,
    "batch-statistics": nn.BatchNorm3d,
    "instance": nn.InstanceNorm3d,
    "group": nn.GroupNorm,
}


def build(name: str, norm: Norm = "batch", volume: Volume = SMALL) -> Network:
    return build_network(registry.networks.find(name), 2, 3, features=4, norm=norm, seed=0, volume=volume)


# Features of the representation: U-Net 4 · 2⁴; DynUNet halves 16 twice, 4 · 2²; the DenseNet as in two dimensions.
@pytest.mark.parametrize(
    ("name", "logits", "features"),
    [("unet", (2, 3, 16, 16, 16), 64), ("dynunet", (2, 3, 16, 16, 16), 16), ("densenet-small", (2, 3), 8)],
)
def test_a_network_gives_logits_and_one_representation_per_volume(
    name: str, logits: tuple[int, ...], features: int
) -> None:
    network = build(name).eval()
    volumes = torch.rand(2, 2, 16, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs, representation = network.represent(volumes)
    assert outputs.shape == logits
    assert representation.shape == (2, features)


@pytest.mark.parametrize("norm", NORMS)
def test_norm_layers_of_volumes_are_of_the_chosen_kind(norm: Norm) -> None:
    layers = [layer for layer in build("dynunet", norm).modules() if isinstance(layer, (nn.GroupNorm, NORMS[norm]))]
    assert len(layers) == 10  # two in each of three levels down and two up
    assert not any(isinstance(layer, nn.BatchNorm3d) for layer in build("dynunet", "group").modules())


def test_fedbn_keeps_the_batch_norm_layers_of_volumes() -> None:
    network = build("dynunet")
    own = set(network.state_dict()) - set(all_but_batch_norm(network))
    assert len(own) == 10 * 5  # weight, bias, mean, variance and the count of batches of each


def test_dynunet_names_every_weight_once() -> None:
    network = build("dynunet")
    weights = [tensor for tensor in network.state_dict().values() if tensor.ndim == 5]
    assert len({tensor.data_ptr() for tensor in weights}) == len(weights)


def test_dynunet_computes_what_monais_does() -> None:
    from monai.networks.nets import DynUNet

    volume = Volume((8, 16, 16), (3.0, 1.0, 1.0), ((1, 2, 2), (2, 2, 2)))
    network = build("dynunet", volume=volume).eval()
    theirs = DynUNet(
        3, 2, 3, kernel_size=[(1, 3, 3), (3, 3, 3), (3, 3, 3)], strides=[1, (1, 2, 2), 2],
        upsample_kernel_size=[(1, 2, 2), 2], filters=[4, 8, 16], norm_name="batch",
    ).eval()  # fmt: skip
    theirs.load_state_dict(network.body.state_dict(), strict=False)
    volumes = torch.rand(1, 2, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(network(volumes), theirs(volumes), atol=1e-6)


# nnU-Net's own plans: of its prostate task (spacing 3.6 × 0.62 × 0.62, patch 20 × 320 × 256), and of an isotropic one.
@pytest.mark.parametrize(
    ("patch", "spacing", "strides"),
    [
        ((20, 320, 256), (3.6, 0.62, 0.62), [(1, 2, 2)] * 2 + [(2, 2, 2)] * 2 + [(1, 2, 2)] * 2),
        ((128, 128, 128), (1.0, 1.0, 1.0), [(2, 2, 2)] * 5),
    ],
)
def test_strides_are_those_of_nnunet(patch: tuple[int, ...], spacing: tuple[float, ...], strides: list) -> None:
    assert list(plan_strides(patch, spacing)) == strides


@pytest.mark.parametrize(
    ("name", "volume", "message"),
    [
        ("unet", Volume((8, 32, 32)), r"data\.patch = \[8, 32, 32\]: unet takes 16 or more .*dynunet takes flat ones"),
        ("densenet121", Volume((16, 64, 64)), "densenet121 takes 32 or more"),
        ("dynunet", Volume((8, 8, 8)), "too small for dynunet"),
        ("dynunet", Volume((16, 18, 16)), r"data\.patch = \[16, 18, 16\]: dynunet takes multiples of 4, 4, 4"),
    ],
)
def test_a_patch_that_does_not_fit_the_network_is_refused(name: str, volume: Volume, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(name, volume=volume)
