"""Layers in plain operators, for runtimes without a Fourier transform.

A discrete Fourier transform is a multiplication by a matrix of cosines and one of sines.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harmofl.methods.layers import SMALLEST_RATIO, AmplitudeNormalization, Harmonizer
from harmofl.methods.model import Model


def plain_model(model: Model) -> Model:
    """The same model for inference, its harmonizer in plain operators if it is one of ours."""
    harmonizer = model.harmonizer
    # Exactly ours: a subclass may do something else, and is taken as it is.
    if type(harmonizer) is AmplitudeNormalization:
        harmonizer = plain_harmonizer(harmonizer)
    return Model(harmonizer, model.network).eval()


def plain_harmonizer(harmonizer: AmplitudeNormalization) -> Harmonizer:
    """What the harmonizer does once its amplitude is fixed."""
    channels, height, width = harmonizer.image_shape
    if harmonizer.band == "none":
        return Harmonizer()
    if harmonizer.band == "dc":
        return PlainMeans(harmonizer.amplitude / (height * width))
    half_spectrum = (height, width // 2 + 1)
    inside = torch.ones(half_spectrum, dtype=torch.bool) if harmonizer.inside is None else harmonizer.inside
    target = torch.zeros(channels, *half_spectrum)
    target[:, inside] = harmonizer.amplitude.flatten(1)
    return PlainSpectrum(target, inside, width)


class PlainMeans(Harmonizer):
    """Gives each channel of an image the average mean, with the sign of its own: band "dc"."""

    target: Tensor

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self.register_buffer("target", target)

    def forward(self, images: Tensor) -> Tensor:
        """Normalize images (N, C, H, W)."""
        means = images.mean(dim=(-2, -1), keepdim=True)
        return images + (torch.where(means < 0, -self.target, self.target) - means)


class PlainSpectrum(Harmonizer):
    """Gives each image the average amplitude inside a band, and changes nothing outside."""

    target: Tensor
    changeable: Tensor
    weights: Tensor
    vertical_cosines: Tensor
    vertical_sines: Tensor
    horizontal_cosines: Tensor
    horizontal_sines: Tensor

    def __init__(self, target: Tensor, inside: Tensor, width: int) -> None:
        super().__init__()
        height, half = inside.shape
        self.num_pixels = height * width
        self.set_means = PlainMeans(target[:, :1, :1] / self.num_pixels)
        changeable = inside.clone()
        changeable[0, 0] = False  # the zero frequency is the mean
        waves = [*_waves(height, height), *_waves(width, half)]
        names = ["vertical_cosines", "vertical_sines", "horizontal_cosines", "horizontal_sines"]
        buffers = dict(zip(names, waves, strict=True))
        buffers |= {"target": target, "changeable": changeable, "weights": _weights(width) / self.num_pixels}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, images: Tensor) -> Tensor:
        """Normalize images (N, C, H, W)."""
        means = images.mean(dim=(-2, -1), keepdim=True)
        # Without their mean, by far the largest amplitude, the other amplitudes lose less to rounding.
        real, imaginary = self._transform(images - means)
        gain = self._gain(torch.sqrt(real * real + imaginary * imaginary), means)
        normalized: Tensor = self.set_means(images) + self._transform_back(real * gain, imaginary * gain)
        return normalized

    def _gain(self, amplitudes: Tensor, means: Tensor) -> Tensor:
        """What is to be added to each bin, as a multiple of it."""
        largest = torch.maximum(amplitudes, means.abs() * self.num_pixels).amax(dim=(-3, -2, -1), keepdim=True)
        changes = (amplitudes > SMALLEST_RATIO * largest) & self.changeable
        return torch.where(changes, self.target / torch.where(changes, amplitudes, 1.0) - 1.0, 0.0)

    def _transform(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The half spectrum of real images: real and imaginary part."""
        real, imaginary = images @ self.horizontal_cosines, -(images @ self.horizontal_sines)
        return (
            self.vertical_cosines @ real + self.vertical_sines @ imaginary,
            self.vertical_cosines @ imaginary - self.vertical_sines @ real,
        )

    def _transform_back(self, real: Tensor, imaginary: Tensor) -> Tensor:
        """The real images of a half spectrum."""
        real, imaginary = (
            self.vertical_cosines @ real - self.vertical_sines @ imaginary,
            self.vertical_cosines @ imaginary + self.vertical_sines @ real,
        )
        real, imaginary = real * self.weights, imaginary * self.weights
        return real @ self.horizontal_cosines.T - imaginary @ self.horizontal_sines.T


def _waves(length: int, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, count) of the first frequencies, exact to the last bit of a 32-bit float."""
    steps = torch.outer(torch.arange(length), torch.arange(count)) % length  # whole turns removed before any rounding
    angles = steps.to(torch.float64) * (2 * math.pi / length)
    return angles.cos().float(), angles.sin().float()


def _weights(width: int) -> Tensor:
    """How often each column of the half spectrum stands in the whole one: once if it is its own mirror image."""
    columns = torch.arange(width // 2 + 1)
    return torch.where((2 * columns) % width == 0, 1.0, 2.0)
