"""The paper's U-Net, from MONAI's blocks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from monai.networks.layers.factories import Conv
from monai.networks.nets.basic_unet import Down, TwoConv, UpCat
from torch import Tensor, nn

LEVELS = 4


class Up(UpCat):  # type: ignore[misc]
    """MONAI's block, which would copy all features where they need no padding, too."""

    def forward(self, features: Tensor, passed: Tensor) -> Tensor:
        """Return features, at twice the size, joined with those that were passed on at that size."""
        larger = self.upsample(features)
        if larger.shape[2:] != passed.shape[2:]:  # an odd size was halved
            missing = [passed.shape[axis] - larger.shape[axis] for axis in reversed(range(2, passed.ndim))]
            larger = F.pad(larger, [each for number in missing for each in (0, number)], "replicate")
        joined: Tensor = self.convs(torch.cat([passed, larger], dim=1))
        return joined


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with four poolings; features double at each.

    Its layers are those of the code released with the HarmoFL paper: every up-convolution halves the features, and
    no convolution in front of a batch norm has a bias, which the norm would take away again.

    Args:
        dimensions: Of the images, 2 or 3.
        channels: Of the images.
        classes: As many logits per pixel.
        features: Of the first level.
    """

    def __init__(self, dimensions: int, channels: int, classes: int, features: int) -> None:
        super().__init__()
        widths = [features * 2**level for level in range(LEVELS + 1)]
        # No dropout: a layer that drops nothing would still take its time.
        blocks: dict[str, Any] = {"act": ("relu", {"inplace": True}), "norm": "batch", "bias": False, "dropout": None}
        self.conv_0 = TwoConv(dimensions, channels, features, **blocks)
        self.down = nn.ModuleList(Down(dimensions, width, 2 * width, **blocks) for width in widths[:-1])
        self.up = nn.ModuleList(Up(dimensions, 2 * width, width, width, **blocks) for width in reversed(widths[:-1]))
        self.final_conv = Conv[Conv.CONV, dimensions](features, classes, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes, …) of images (N, channels, …)."""
        features = self.conv_0(images)
        passed = []
        for down in self.down:
            passed.append(features)
            features = down(features)
        for up in self.up:
            features = up(features, passed.pop())
        logits: Tensor = self.final_conv(features)
        return logits
