"""nnU-Net's architecture, from MONAI."""

from __future__ import annotations

from monai.networks.nets.dynunet import DynUNet
from torch import Tensor

MOST_FEATURES = 320


class PlainDynUNet(DynUNet):  # type: ignore[misc]
    """MONAI's DynUNet (Isensee et al. 2021) without its second set of names for the same layers.

    MONAI keeps every block twice, by its place in a list and inside nested skip connections, so that its state would
    name, keep and send every weight twice.
    """

    def __init__(
        self,
        dimensions: int,
        channels: int,
        classes: int,
        features: int,
        kernels: tuple[tuple[int, ...], ...],
        strides: tuple[tuple[int, ...], ...],
    ) -> None:
        """`kernels`: one more than strides, the last of the deepest level."""
        super().__init__(
            spatial_dims=dimensions,
            in_channels=channels,
            out_channels=classes,
            kernel_size=kernels,
            strides=((1,) * dimensions, *strides),
            upsample_kernel_size=strides,
            filters=[min(features * 2**level, MOST_FEATURES) for level in range(len(kernels))],
            norm_name="batch",
        )
        del self.skip_layers

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes, …) of images (N, channels, …)."""
        features, passed = self.input_block(images), []
        for down in self.downsamples:
            passed.append(features)
            features = down(features)
        passed.append(features)
        features = self.bottleneck(features)
        for up in self.upsamples:
            features = up(features, passed.pop())
        logits: Tensor = self.output_block(features)
        return logits
