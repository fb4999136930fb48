"""Layers in plain operators, for runtimes without a Fourier transform.

A discrete Fourier transform is a multiplication by a matrix of cosines and one of sines.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harmofl.methods.amplitude_alignment import AmplitudeAlignment
from harmofl.methods.layers import SMALLEST_RATIO, AmplitudeNormalization, Harmonizer
from harmofl.methods.model import Model


def plain_model(model: Model) -> Model:
    """The same model for inference, its harmonizer in plain operators if it is one of ours."""
    harmonizer = model.harmonizer
    # Exactly ours: a subclass may do something else, and is taken as it is.
    if type(harmonizer) is AmplitudeNormalization:
        harmonizer = plain_harmonizer(harmonizer)
    elif type(harmonizer) is AmplitudeAlignment:
        harmonizer = plain_alignment(harmonizer)
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


def plain_alignment(harmonizer: AmplitudeAlignment) -> Harmonizer:
    """What the alignment does once its amplitudes are known."""
    if harmonizer.band == "none":
        return Harmonizer()
    if harmonizer.band == "dc":
        return PlainMeanGain(harmonizer.gain() - 1)
    _, height, width = harmonizer.image_shape
    return PlainGain(harmonizer.whole_change(), height, width)


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


class PlainMeanGain(Harmonizer):
    """Multiplies each channel's mean by a gain, by a shift of the image: alignment at band "dc"."""

    change: Tensor

    def __init__(self, change: Tensor) -> None:
        super().__init__()
        self.register_buffer("change", change)

    def forward(self, images: Tensor) -> Tensor:
        """Align images (N, C, H, W)."""
        return images + self.change * images.mean(dim=(-2, -1), keepdim=True)


class PlainFourier(Harmonizer):
    """A layer with a Fourier transform of images of one size, and back."""

    weights: Tensor
    vertical_cosines: Tensor
    vertical_sines: Tensor
    horizontal_cosines: Tensor
    horizontal_sines: Tensor

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.num_pixels = height * width
        waves = [*_waves(height, height), *_waves(width, width // 2 + 1), _weights(width) / self.num_pixels]
        names = ["vertical_cosines", "vertical_sines", "horizontal_cosines", "horizontal_sines", "weights"]
        for name, buffer in zip(names, waves, strict=True):
            self.register_buffer(name, buffer)

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


class PlainGain(PlainFourier):
    """Multiplies each frequency by a gain, of which `change` is what exceeds 1."""

    change: Tensor

    def __init__(self, change: Tensor, height: int, width: int) -> None:
        super().__init__(height, width)
        self.register_buffer("change", change)

    def forward(self, images: Tensor) -> Tensor:
        """Align images (N, C, H, W)."""
        real, imaginary = self._transform(images)
        return images + self._transform_back(real * self.change, imaginary * self.change)


class PlainSpectrum(PlainFourier):
    """Gives each image the average amplitude inside a band, and changes nothing outside."""

    target: Tensor
    changeable: Tensor

    def __init__(self, target: Tensor, inside: Tensor, width: int) -> None:
        super().__init__(len(inside), width)
        self.set_means = PlainMeans(target[:, :1, :1] / self.num_pixels)
        changeable = inside.clone()
        changeable[0, 0] = False  # the zero frequency is the mean
        self.register_buffer("target", target)
        self.register_buffer("changeable", changeable)

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


def _waves(length: int, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, count) of the first frequencies, exact to the last bit of a 32-bit float."""
    steps = torch.outer(torch.arange(length), torch.arange(count)) % length  # whole turns removed before any rounding
    angles = steps.to(torch.float64) * (2 * math.pi / length)
    return angles.cos().float(), angles.sin().float()


def _weights(width: int) -> Tensor:
    """How often each column of the half spectrum stands in the whole one: once if it is its own mirror image."""
    columns = torch.arange(width // 2 + 1)
    return torch.where((2 * columns) % width == 0, 1.0, 2.0)
