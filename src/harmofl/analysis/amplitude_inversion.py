"""The attack that the paper itself shows: gradient inversion of amplitudes that were extracted from images.

The network is given an image's amplitude as if it were an image, and the attacker looks for what made its gradient
(Geiping et al., NeurIPS 2020), "solely using frequency information". What he finds is compared with the image, as in
the paper, and with the amplitude that was really there: the best that he can find is that amplitude, and an amplitude
looks like no image. Phase retrieval goes on from it, and so says more about what an amplitude gives away.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from harmofl.analysis.gradient_inversion import Search, Update, invert
from harmofl.analysis.similarity import psnr, ssim


@dataclass(frozen=True)
class Found:
    """What an attack found, for a batch of one image: the picture, and PSNR and SSIM against two truths."""

    picture: Tensor
    against_image: tuple[float, float]
    against_amplitude: tuple[float, float]


def picture_of_amplitude(images: Tensor) -> Tensor:
    """Amplitudes of images (N, C, H, W) as pictures in [0, 1]: on a log scale, the zero frequency in the middle."""
    amplitude: Tensor = torch.fft.fftshift(torch.fft.fft2(images).abs(), dim=(-2, -1)).log1p()
    brightest = amplitude.amax(dim=(1, 2, 3), keepdim=True)
    return amplitude / brightest


def invert_amplitude(image: Tensor, target: Tensor, update: Update, search: Search, generator: Generator) -> Found:
    """Attack the amplitude of one image (1, C, H, W) with its label or mask (1, …)."""
    amplitude = picture_of_amplitude(image)
    shape = (image.shape[1], image.shape[2], image.shape[3])
    found = invert(update, update(amplitude, target), target, shape, search, generator).images
    return Found(found, _scores(found, image), _scores(found, amplitude))


def _scores(found: Tensor, truth: Tensor) -> tuple[float, float]:
    return float(psnr(found, truth).mean()), float(ssim(found, truth).mean())
