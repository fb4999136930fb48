"""Amplitude normalization in plain operators, for runtimes without a Fourier transform.

A discrete Fourier transform is a multiplication by a matrix of cosines and one of sines. These layers learn nothing;
`torch.jit.script` takes them, and so does every exporter.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class PlainMeans(nn.Module):
    """Gives each channel of an image the average mean, with the sign of its own: band "dc"."""

    target: Tensor

    def __init__(self, target: Tensor) -> None:
        """`target`: (C, 1, …), with as many axes as an image."""
        super().__init__()
        self.register_buffer("target", target)
        self.spatial = list(range(1 - target.ndim, 0))

    def forward(self, images: Tensor) -> Tensor:
        """Normalize images (N, C, *spatial)."""
        means = images.mean(dim=self.spatial, keepdim=True)
        return images + (torch.where(means < 0, -self.target, self.target) - means)


class PlainMeanGain(nn.Module):
    """Multiplies each channel's mean by a gain, by a shift of the image: alignment at band "dc"."""

    change: Tensor

    def __init__(self, change: Tensor) -> None:
        """`change`: (C, 1, …), what of the gain exceeds 1."""
        super().__init__()
        self.register_buffer("change", change)
        self.spatial = list(range(1 - change.ndim, 0))

    def forward(self, images: Tensor) -> Tensor:
        """Align images (N, C, *spatial)."""
        return images + self.change * images.mean(dim=self.spatial, keepdim=True)


class Rotation(nn.Module):
    """The Fourier transform, or its inverse, along an axis other than the last; real and imaginary parts apart."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, length: int, axis: int, back: bool) -> None:
        super().__init__()
        cosines, sines = _make_waves(length, length)
        self.register_buffer("cosines", cosines)
        self.register_buffer("sines", -sines if back else sines)
        self.axis = axis

    def forward(self, real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor]:
        """Transform a spectrum (…, *spatial)."""
        real, imaginary = real.transpose(self.axis, -2), imaginary.transpose(self.axis, -2)
        turned = self.cosines @ real + self.sines @ imaginary
        other = self.cosines @ imaginary - self.sines @ real
        return turned.transpose(self.axis, -2), other.transpose(self.axis, -2)


class Spectrum(nn.Module):
    """The half spectrum of real images (…, *spatial): real and imaginary part."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, spatial: Sequence[int]) -> None:
        super().__init__()
        cosines, sines = _make_waves(spatial[-1], spatial[-1] // 2 + 1)
        self.register_buffer("cosines", cosines)
        self.register_buffer("sines", sines)
        axes = zip(spatial[:-1], range(-len(spatial), -1), strict=True)
        self.rotations = nn.ModuleList(Rotation(length, axis, back=False) for length, axis in axes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Transform images."""
        real, imaginary = images @ self.cosines, -(images @ self.sines)
        for rotation in self.rotations:
            real, imaginary = rotation(real, imaginary)
        return real, imaginary


class SpectrumBack(nn.Module):
    """The real images (…, *spatial) of a half spectrum."""

    weights: Tensor
    cosines: Tensor
    sines: Tensor

    def __init__(self, spatial: Sequence[int]) -> None:
        super().__init__()
        cosines, sines = _make_waves(spatial[-1], spatial[-1] // 2 + 1)
        weights = _weights(spatial[-1]) / math.prod(spatial)
        self.register_buffer("weights", weights)
        self.register_buffer("cosines", cosines.T.contiguous())
        self.register_buffer("sines", sines.T.contiguous())
        axes = zip(spatial[:-1], range(-len(spatial), -1), strict=True)
        self.rotations = nn.ModuleList(Rotation(length, axis, back=True) for length, axis in axes)

    def forward(self, real: Tensor, imaginary: Tensor) -> Tensor:
        """Transform a spectrum back."""
        for rotation in self.rotations:
            real, imaginary = rotation(real, imaginary)
        images: Tensor = (real * self.weights) @ self.cosines - (imaginary * self.weights) @ self.sines
        return images


class PlainGain(nn.Module):
    """Multiplies each frequency by a gain."""

    change: Tensor

    def __init__(self, change: Tensor, spatial: Sequence[int]) -> None:
        """`change`: (C, …, width // 2 + 1), what of the gain exceeds 1."""
        super().__init__()
        self.register_buffer("change", change)
        self.spectrum = Spectrum(spatial)
        self.back = SpectrumBack(spatial)

    def forward(self, images: Tensor) -> Tensor:
        """Align images (N, C, *spatial)."""
        real, imaginary = self.spectrum(images)
        aligned: Tensor = images + self.back(real * self.change, imaginary * self.change)
        return aligned


class PlainSpectrum(nn.Module):
    """Gives each image the average amplitude inside a band, and changes nothing outside."""

    target: Tensor
    changeable: Tensor

    def __init__(self, target: Tensor, changeable: Tensor, spatial: Sequence[int], smallest_ratio: float) -> None:
        """`target`: (C, …, width // 2 + 1). `changeable`: of these bins, those whose amplitude is replaced.

        `smallest_ratio`: bins below this part of an image's largest amplitude hold no phase.
        """
        super().__init__()
        self.num_pixels = math.prod(spatial)
        self.smallest_ratio = smallest_ratio
        self.spatial = list(range(-len(spatial), 0))
        first = (slice(None), *(slice(1) for _ in spatial))
        self.set_means = PlainMeans(target[first] / self.num_pixels)
        self.register_buffer("target", target)
        self.register_buffer("changeable", changeable)
        self.spectrum = Spectrum(spatial)
        self.back = SpectrumBack(spatial)

    def forward(self, images: Tensor) -> Tensor:
        """Normalize images (N, C, *spatial)."""
        means = images.mean(dim=self.spatial, keepdim=True)
        # Without their mean, by far the largest amplitude, the other amplitudes lose less to rounding.
        real, imaginary = self.spectrum(images - means)
        gain = self._gain(torch.sqrt(real * real + imaginary * imaginary), means)
        normalized: Tensor = self.set_means(images) + self.back(real * gain, imaginary * gain)
        return normalized

    def _gain(self, amplitudes: Tensor, means: Tensor) -> Tensor:
        """What is to be added to each bin, as a multiple of it."""
        largest = torch.maximum(amplitudes, means.abs() * self.num_pixels).flatten(1).amax(dim=1)
        for _ in range(amplitudes.dim() - 1):
            largest = largest.unsqueeze(-1)
        changes = (amplitudes > self.smallest_ratio * largest) & self.changeable
        replaced = torch.where(changes, amplitudes, torch.ones_like(amplitudes))
        return torch.where(changes, self.target / replaced - 1.0, torch.zeros_like(amplitudes))


def _make_waves(length: int, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, count) of the first frequencies, exact to the last bit of a 32-bit float."""
    steps = torch.outer(torch.arange(length), torch.arange(count)) % length  # whole turns removed before any rounding
    angles = steps.to(torch.float64) * (2 * math.pi / length)
    return angles.cos().float(), angles.sin().float()


def _weights(width: int) -> Tensor:
    """How often each column of the half spectrum stands in the whole one: once if it is its own mirror image."""
    columns = torch.arange(width // 2 + 1)
    return torch.where((2 * columns) % width == 0, 1.0, 2.0)
