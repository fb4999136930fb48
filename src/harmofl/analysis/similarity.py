"""How close a reconstruction is to an image: PSNR, SSIM (Wang et al. 2004), and the best fit among shifts and turns."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

WINDOW, SPREAD = 11, 1.5
"""Pixels and standard deviation of SSIM's Gaussian window."""
SMALLEST_ERROR = 1e-10
"""Mean squared error that counts as none: 100 dB."""


def psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of images (N, C, H, W) in [0, 1]; (N,)."""
    error = (images - truth).square().mean(dim=(-3, -2, -1))
    return -10 * error.clamp_min(SMALLEST_ERROR).log10()


def ssim(images: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity of images (N, C, H, W) in [0, 1], averaged over channels and places; (N,)."""
    kernel = _gaussian(images)

    def local(values: Tensor) -> Tensor:
        return functional.conv2d(values.flatten(0, 1)[:, None], kernel)

    mean, other_mean = local(images), local(truth)
    variance, other_variance = local(images.square()) - mean.square(), local(truth.square()) - other_mean.square()
    covariance = local(images * truth) - mean * other_mean
    light = (2 * mean * other_mean + 0.01**2) / (mean.square() + other_mean.square() + 0.01**2)
    structure = (2 * covariance + 0.03**2) / (variance + other_variance + 0.03**2)
    return (light * structure).reshape(len(images), -1).mean(dim=1)


def _gaussian(like: Tensor) -> Tensor:
    size = min(WINDOW, *like.shape[-2:])
    places = torch.arange(size, dtype=like.dtype) - (size - 1) / 2
    weights = torch.exp(-0.5 * (places / SPREAD).square())
    weights = weights / weights.sum()
    return (weights[:, None] * weights[None, :])[None, None]


def align(images: Tensor, truth: Tensor) -> Tensor:
    """Undo what an amplitude cannot tell: shift images around the frame, and turn them by 180°, to fit the truth.

    Both shifts and turns keep the sum of squares, so the largest correlation is also the smallest error.
    """
    views = torch.stack([images, images.flip((-2, -1))])
    spectra = torch.fft.rfft2(truth) * torch.fft.rfft2(views).conj()
    correlation = torch.fft.irfft2(spectra.sum(dim=-3), s=images.shape[-2:]).flatten(-2)
    largest, places = correlation.max(dim=-1)
    chosen = largest.argmax(dim=0)
    width = images.shape[-1]
    aligned = []
    for number, view in enumerate(chosen.tolist()):
        row, column = divmod(int(places[view, number]), width)
        aligned.append(views[view, number].roll((row, column), dims=(-2, -1)))
    return torch.stack(aligned)
