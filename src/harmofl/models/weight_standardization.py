"""Networks without norm layers: convolutions whose weights are standardized instead.

Scaled weight standardization (Brock, De and Smith, ICLR 2021), which FedWon (Zhuang and Lyu, ICLR 2024) puts in the
place of batch norm: nothing depends on other images, and there are no statistics that fit one hospital only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
"""γ: what gives the output of a ReLU of unit-variance features unit variance again, 1.71."""
SMALLEST_VARIANCE = 1e-4
"""Of weights times their number: what constant weights are divided by."""


class StandardizedWeights(nn.Module):
    """A convolution with the weights γ·g·(W − mean) / √(variance · N), per output channel with N weights.

    The gain g, 1 at first, and a bias, 0 at first, take the place of a batch norm's weight and bias.
    """

    weight: Tensor
    gain: nn.Parameter

    def standardized(self) -> Tensor:
        """The weights that images are convolved with."""
        weight = self.weight
        variance, mean = torch.var_mean(weight.flatten(1), dim=1, correction=0)
        scale = RELU_GAIN * self.gain * torch.rsqrt((variance * weight[0].numel()).clamp_min(SMALLEST_VARIANCE))
        shape = (-1, *(1 for _ in weight.shape[1:]))
        return (weight - mean.view(shape)) * scale.view(shape)

    def forward(self, features: Tensor) -> Tensor:
        """Convolve features (N, C, …)."""
        convolved: Tensor = self._conv_forward(features, self.standardized(), self.bias)  # type: ignore[operator]
        return convolved


class StandardizedConv1d(StandardizedWeights, nn.Conv1d):
    """Of signals."""


class StandardizedConv2d(StandardizedWeights, nn.Conv2d):
    """Of images."""


class StandardizedConv3d(StandardizedWeights, nn.Conv3d):
    """Of volumes."""


KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: StandardizedConv1d,
    nn.Conv2d: StandardizedConv2d,
    nn.Conv3d: StandardizedConv3d,
}


def remove_norms(network: nn.Module) -> None:
    """Standardize all convolutions but one that gives the logits, and take batch norm layers away."""
    *_, last = (layer for layer in network.modules() if list(layer.parameters(recurse=False)))
    for parent in list(network.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
                setattr(parent, name, nn.Identity())
            elif type(layer) in KINDS and layer is not last:
                setattr(parent, name, _standardize(layer))


def _standardize(layer: nn.Module) -> nn.Module:
    """The same convolution, with the same weights at first but standardized, a gain and a bias."""
    assert isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    shape = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    new = KINDS[type(layer)](**{name: getattr(layer, name) for name in shape}, bias=True)
    assert isinstance(new, StandardizedWeights)
    new.gain = nn.Parameter(torch.ones(layer.out_channels))
    with torch.no_grad():
        new.get_parameter("weight").copy_(layer.weight)
        new.get_parameter("bias").zero_()
    return new
