"""Amplitude normalization as in the code released with the paper: image by image, with NumPy's complex transform.

That code declares double precision for the whole of it, which NumPy's transform always had before its version 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float32]


@dataclass(frozen=True)
class NumpyAmplitude:
    """Replaces amplitudes by fixed ones, all of them or that of the zero frequency; written from the description.

    `amplitude`: (C, H, W), the whole spectrum, zero frequency first.
    """

    amplitude: Array
    full: bool = False

    def __call__(self, images: Tensor) -> Tensor:
        """Normalize a batch, one image after the other."""
        return torch.from_numpy(np.stack([self._normalize(image) for image in images.numpy()]))

    def _normalize(self, image: Array) -> Array:
        spectrum = np.fft.fft2(image.astype(np.float64), axes=(-2, -1))
        amplitude, phase = np.abs(spectrum), np.angle(spectrum)
        centred = np.fft.fftshift(amplitude, axes=(-2, -1))
        target = np.fft.fftshift(self.amplitude, axes=(-2, -1))
        window = self._window(image.shape)
        centred[window] = target[window]
        amplitude = np.fft.ifftshift(centred, axes=(-2, -1))
        changed: Array = np.real(np.fft.ifft2(amplitude * np.exp(1j * phase), axes=(-2, -1))).astype(np.float32)
        return changed

    def _window(self, shape: tuple[int, ...]) -> tuple[slice, slice, slice]:
        if self.full:
            return slice(None), slice(None), slice(None)
        middle = (shape[-2] // 2, shape[-1] // 2)
        return slice(None), slice(middle[0], middle[0] + 1), slice(middle[1], middle[1] + 1)


def mean_amplitude(images: Tensor) -> Array:
    """The mean amplitude of images, zero frequency first."""
    amplitudes: Array = np.abs(np.fft.fft2(images.numpy(), axes=(-2, -1))).mean(axis=0).astype(np.float32)
    return amplitudes
