"""Every network, from MONAI or its blocks."""

from __future__ import annotations

from typing import Any

from torch import nn

from harmofl.models.network import NetworkEntry


def _densenet(channels: int, classes: int, **shape: Any) -> nn.Module:
    from monai.networks.nets import DenseNet

    network: nn.Module = DenseNet(spatial_dims=2, in_channels=channels, out_channels=classes, **shape)
    return network


def build_densenet121(channels: int, classes: int, features: int) -> nn.Module:
    """DenseNet121 (Huang et al. 2017)."""
    return _densenet(channels, classes, init_features=features, growth_rate=features // 2)


def build_densenet_small(channels: int, classes: int, features: int) -> nn.Module:
    """A DenseNet of three short blocks, for small images and two cores."""
    return _densenet(
        channels,
        classes,
        init_features=features,
        growth_rate=features // 2,
        block_config=(2, 2, 2),
        bn_size=2,
    )


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


densenet121 = NetworkEntry("densenet121", ("classification",), build_densenet121, "class_layers.flatten")
densenet_small = NetworkEntry("densenet-small", ("classification",), build_densenet_small, "class_layers.flatten")
unet = NetworkEntry("unet", ("segmentation",), build_unet, "down.3")
basic_unet = NetworkEntry("basic-unet", ("segmentation",), build_basic_unet, "down_4")
