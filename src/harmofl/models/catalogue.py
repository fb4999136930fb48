"""Every network, from MONAI or its blocks."""

from __future__ import annotations

from typing import Any

from torch import nn

from harmofl.models.network import NetworkEntry
from harmofl.models.volumes import Volume, check_halvings, check_strides

SHORT = {"block_config": (2, 2, 2), "bn_size": 2}
"""The shape of a DenseNet of three short blocks, for small images and two cores."""


def _densenet(dimensions: int, channels: int, classes: int, features: int, **shape: Any) -> nn.Module:
    from monai.networks.nets import DenseNet

    network: nn.Module = DenseNet(
        spatial_dims=dimensions,
        in_channels=channels,
        out_channels=classes,
        init_features=features,
        growth_rate=features // 2,
        **shape,
    )
    return network


def build_densenet121(channels: int, classes: int, features: int) -> nn.Module:
    """DenseNet121 (Huang et al. 2017)."""
    return _densenet(2, channels, classes, features)


def build_densenet121_of_volumes(channels: int, classes: int, features: int, volume: Volume) -> nn.Module:
    """The same in three dimensions."""
    check_halvings("densenet121", volume, smallest=32)
    return _densenet(3, channels, classes, features)


def build_densenet_small(channels: int, classes: int, features: int) -> nn.Module:
    """A DenseNet of three short blocks."""
    return _densenet(2, channels, classes, features, **SHORT)


def build_densenet_small_of_volumes(channels: int, classes: int, features: int, volume: Volume) -> nn.Module:
    """The same in three dimensions."""
    check_halvings("densenet-small", volume, smallest=16)
    return _densenet(3, channels, classes, features, **SHORT)


def build_unet(channels: int, classes: int, features: int) -> nn.Module:
    """The paper's U-Net."""
    from harmofl.models.unet import UNet

    return UNet(dimensions=2, channels=channels, classes=classes, features=features)


def build_basic_unet(channels: int, classes: int, features: int) -> nn.Module:
    """MONAI's own U-Net: more features in its last up-convolution, and biases in front of batch norms."""
    from monai.networks.nets import BasicUNet

    widths = [features * 2**level for level in range(5)] + [features]
    network: nn.Module = BasicUNet(
        spatial_dims=2, in_channels=channels, out_channels=classes, features=widths, norm="batch", act="relu"
    )
    return network


def build_unet_of_volumes(channels: int, classes: int, features: int, volume: Volume) -> nn.Module:
    """The same in three dimensions."""
    from harmofl.models.unet import LEVELS, UNet

    check_halvings("unet", volume, smallest=2**LEVELS)
    return UNet(dimensions=3, channels=channels, classes=classes, features=features)


def build_dynunet_of_volumes(channels: int, classes: int, features: int, volume: Volume) -> nn.Module:
    """nnU-Net's architecture, which halves the axes of fine voxels first."""
    from harmofl.models.dynunet import PlainDynUNet

    check_strides(volume)
    return PlainDynUNet(3, channels, classes, features, volume.kernels, volume.levels)


densenet121 = NetworkEntry(
    "densenet121", ("classification",), build_densenet121, "class_layers.flatten", build_densenet121_of_volumes
)
densenet_small = NetworkEntry(
    "densenet-small", ("classification",), build_densenet_small, "class_layers.flatten", build_densenet_small_of_volumes
)
unet = NetworkEntry("unet", ("segmentation",), build_unet, "down.3", build_unet_of_volumes)
dynunet = NetworkEntry("dynunet", ("segmentation",), None, "bottleneck", build_dynunet_of_volumes, takes_strides=True)
basic_unet = NetworkEntry("basic-unet", ("segmentation",), build_basic_unet, "down_4")
