"""Images from amplitudes alone: hybrid input-output and error reduction (Fienup, Applied Optics 1982).

The attacker holds the amplitude that a site sent, knows that intensities lie in [0, 1], and may know where images
are black (`support`). He lacks the phase. Channels of one image share most of their structure, so during the first
half they share one phase. Of several random starts he keeps the one that fits the amplitude best.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from harmofl.methods.amplitude_normalization import AmplitudeNormalization

FEEDBACK = 0.9
"""β: how strongly hybrid input-output pushes against what breaks a constraint."""
CYCLE, LAST = 100, 50
"""Iterations of a cycle, half of which are error reduction, and of error reduction at the end."""
NO_AMPLITUDE = 1e-9


@dataclass(frozen=True)
class Knowledge:
    """What the attacker has.

    amplitude: (..., C, H, W // 2 + 1), zero where nothing was sent
    inside:    (H, W // 2 + 1) bool, the bins that were sent
    support:   (H, W) bool, where an image may differ from black
    """

    amplitude: Tensor
    inside: Tensor
    support: Tensor

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return (self.support.shape[0], self.support.shape[1])


def half_spectrum(harmonizer: AmplitudeNormalization) -> tuple[Tensor, Tensor]:
    """What a harmonizer sends, laid out as (C, H, W // 2 + 1), and which of these bins it sends."""
    channels, height, width = harmonizer.image_shape
    sent = harmonizer.measurement()["amplitude"]
    inside = torch.ones(height, width // 2 + 1, dtype=torch.bool)
    if harmonizer.band == "full":
        return sent, inside
    if harmonizer.band == "dc":
        inside = torch.zeros_like(inside)
        inside[0, 0] = True
    elif harmonizer.inside is not None:
        inside = harmonizer.inside
    amplitude = torch.zeros(channels, height, width // 2 + 1)
    amplitude[:, inside] = sent.flatten(1)
    return amplitude, inside


def with_amplitude(images: Tensor, known: Knowledge, one_phase: bool = False) -> Tensor:
    """Give images the known amplitudes and leave their phases; `one_phase`: that of the sum over channels."""
    spectrum = torch.fft.rfft2(images)
    source = spectrum.sum(dim=-3, keepdim=True) if one_phase else spectrum
    phase = source / source.abs().clamp_min(NO_AMPLITUDE)
    changed: Tensor = torch.fft.irfft2(torch.where(known.inside, known.amplitude * phase, spectrum), s=known.size)
    return changed


def apply_knowledge(images: Tensor, known: Knowledge) -> Tensor:
    """The nearest images that are black outside the support and in [0, 1] inside."""
    return images.clamp(0, 1) * known.support


def at_best(images: Tensor, known: Knowledge) -> Tensor:
    """What of images could be seen if their phases were known: only the bins that were sent."""
    seen = torch.where(known.inside, torch.fft.rfft2(images), 0.0)
    return apply_knowledge(torch.fft.irfft2(seen, s=known.size), known)


def error_reduction(images: Tensor, known: Knowledge, one_phase: bool = False) -> Tensor:
    """One step: the known amplitude, then the nearest allowed image. The error never grows."""
    return apply_knowledge(with_amplitude(images, known, one_phase), known)


def hybrid_input_output(images: Tensor, known: Knowledge, one_phase: bool = False) -> Tensor:
    """One step that may leave a local minimum: what breaks a constraint is pushed back, not cut."""
    output = with_amplitude(images, known, one_phase)
    excess = output - apply_knowledge(output, known)
    return torch.where(excess == 0, output, images - FEEDBACK * excess)


def spectral_error(images: Tensor, known: Knowledge) -> Tensor:
    """Relative distance to the nearest images with the known amplitude; by Parseval, that of the amplitudes."""
    nearest = with_amplitude(images, known)
    distance, size = (part.square().sum(dim=(-3, -2, -1)) for part in (images - nearest, nearest))
    return (distance / size).sqrt()


def retrieve(known: Knowledge, restarts: int, iterations: int, generator: Generator) -> Tensor:
    """The best of several reconstructions (..., C, H, W), chosen by what the attacker can see."""
    each = Knowledge(known.amplitude[None], known.inside, known.support)
    noise = torch.rand(restarts, *known.amplitude.shape[:-3], 1, *known.size, generator=generator)
    # Bins that were not sent start at zero, not at noise: nothing is known of them.
    spectrum = torch.where(known.inside, torch.fft.rfft2(noise * known.support), 0.0)
    images = with_amplitude(torch.fft.irfft2(spectrum, s=known.size).expand(_shape(each, restarts)), each)
    for iteration in range(iterations):
        reduces = iteration % CYCLE >= CYCLE // 2 or iteration >= iterations - LAST
        step = error_reduction if reduces else hybrid_input_output
        images = step(images, each, iteration < iterations // 2)
    images = apply_knowledge(images, each)
    best = spectral_error(images, each).argmin(dim=0)
    return torch.take_along_dim(images, best[None, ..., None, None, None], dim=0)[0]


def _shape(known: Knowledge, restarts: int) -> tuple[int, ...]:
    return (restarts, *known.amplitude.shape[1:-2], *known.size)
