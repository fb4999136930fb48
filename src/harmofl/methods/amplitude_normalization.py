"""HarmoFL's amplitude normalization: each image keeps its Fourier phase and takes the average amplitude."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from harmofl.methods.layers import SMALLEST_RATIO, Band, BandLayer, ImageShape, check_finite
from harmofl.methods.plain_layers import PlainMeans, PlainSpectrum
from harmofl.states import State


class AmplitudeNormalization(BandLayer):
    """Keeps each image's Fourier phase and gives it the amplitude averaged over images (Eq. 2-4 of HarmoFL).

    In train mode it first learns the moving average from the batch, then normalizes; `freeze()` ends the learning. The
    average is bias-corrected: the first batch counts fully. Images (N, C, H, W) are floating-point numbers, scaled
    to [0, 1], of any precision; they come out in the same shape and precision, not clipped. Signals (N, C, L) and
    volumes (N, C, D, H, W) work too.

    Args:
        image_shape: (channels, *spatial) of the images, with one to three spatial dimensions. A band "dc" does not
            depend on the size: what was learned from patches serves whole images.
        band: Which amplitudes are replaced: "none", "dc" (the zero frequency: each channel's mean), a radius in cycles
            per pixel (above 0 and up to the corner of the spectrum, 0.71 in two dimensions), or "full".
        decay: v of the moving average, from 0 to 1; at 0 the first batch stays for ever.
        spacing: The distance of pixels along each spatial dimension, such as millimetres; the radius is then in cycles
            per that unit, and means the same in every direction of an anisotropic volume.

    Example:
        >>> layer = AmplitudeNormalization(image_shape=(1, 2, 2), band="dc")
        >>> images = torch.tensor([[[[0.0, 0.2], [0.4, 0.6]]], [[[0.4, 0.6], [0.8, 1.0]]]])
        >>> layer(images).mean(dim=(1, 2, 3))  # their means were 0.3 and 0.7
        tensor([0.5000, 0.5000])
        >>> layer.amplitude.flatten()  # 4 pixels times the mean of the means
        tensor([2.])
    """

    precise = ("amplitude", "bias")
    bias: Tensor
    frozen: Tensor

    def __init__(
        self, image_shape: ImageShape, band: Band = "dc", decay: float = 0.1, spacing: Sequence[float] | None = None
    ) -> None:
        super().__init__(image_shape, band, spacing)
        self.decay = decay
        if not (isinstance(decay, (int, float)) and 0 <= decay <= 1):
            raise ValueError(f"decay must be from 0 to 1, not {decay!r}")
        # What is still missing of the average's weights: (1 - v)^k after k batches, 0 once an average was received.
        self.register_buffer("bias", torch.ones(()))
        self.register_buffer("frozen", torch.zeros((), dtype=torch.uint8))

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"image_shape={self.image_shape}, band={self.band!r}, decay={self.decay}, frozen={bool(self.frozen)}"

    def forward(self, images: Tensor) -> Tensor:
        """Normalize images (N, C, *spatial); in train mode, and unless frozen, learn from them first."""
        self._check(images)
        if torch.compiler.is_exporting():  # what is exported learns nothing, and looks at no numbers before it runs
            exported: Tensor = self.plain()(self._precise(images)).to(images.dtype)
            return exported
        if self.band == "none" or len(images) == 0:  # the mean of no images would be NaN
            return images
        learns = self.training and not self.frozen
        if not learns and self.bias == 1:
            raise RuntimeError(
                "no amplitude yet: call in train mode before eval() and freeze(), or load or receive one"
            )
        normalize = self._normalize_means if self.band == "dc" else self._normalize_spectrum
        return normalize(self._precise(images), learns).to(images.dtype)

    def _normalize_means(self, images: Tensor, learns: bool) -> Tensor:
        means = images.mean(dim=self._spatial, keepdim=True)
        if learns:
            self._learn((means.abs() * self._num_pixels()).detach())
        return images + (_signed(self.amplitude / self._num_pixels(), means) - means)

    def _normalize_spectrum(self, images: Tensor, learns: bool) -> Tensor:
        spectrum = torch.fft.rfftn(images, dim=self._spatial)
        amplitudes = spectrum.abs()
        if learns:
            self._learn(self._inside(amplitudes).detach())
        target = self._whole_spectrum(amplitudes)
        largest = amplitudes.detach().flatten(1).amax(dim=1).view(-1, *(1 for _ in self.image_shape))
        no_phase = amplitudes <= SMALLEST_RATIO * largest
        first_bin = tuple(slice(1) for _ in self._spatial)
        mean_of_target = target.expand_as(amplitudes)[:, :, *first_bin]
        zero_frequency = _signed(mean_of_target, spectrum.real[:, :, *first_bin]) / self._num_pixels()
        # `requires_grad` would not tell: torch.func differentiates tensors that do not require it.
        if differentiated := torch.is_grad_enabled():  # gradients stay finite where there is no phase
            amplitudes = amplitudes.masked_fill(no_phase, 1.0)
        # Ratios of amplitudes, never angles; in place where that may be, as new memory costs more than the arithmetic.
        ratio = (target / amplitudes).masked_fill_(no_phase, 1.0)
        ratio[:, :, *first_bin] = 0.0
        spectrum = spectrum * ratio if differentiated else spectrum.mul_(ratio)
        size = images.shape[-len(self._spatial) :]
        normalized: Tensor = torch.fft.irfftn(spectrum, s=size, dim=self._spatial)
        return normalized.add_(zero_frequency)

    def _whole_spectrum(self, amplitudes: Tensor) -> Tensor:
        """The target inside the band, each image's own amplitudes outside."""
        if self.inside is None:
            return self.amplitude.clone()  # a copy, as the next batch changes it before this one's backward pass
        target = amplitudes.clone()
        target[..., self.inside] = self.amplitude
        return target

    def _learn(self, amplitudes: Tensor) -> None:
        check_finite(amplitudes)
        first = bool(self.bias == 1)
        self.bias *= 1 - self.decay
        weight = 1.0 if first else self.decay / (1 - float(self.bias))
        self.amplitude.lerp_(amplitudes.mean(dim=0), weight)
        # With decay 0, or next to it, the first batch stays for ever, as in the code released with the paper.
        if self.bias == 1:
            self.bias.zero_()

    def measure(self, batches: Iterable[Tensor]) -> None:
        """Take the exact mean amplitude over batches, instead of a moving average."""
        mean = self._mean_amplitude(batches)
        if self.band != "none":
            self.receive({"amplitude": mean})

    def measurement(self) -> State:
        """The site's average amplitude; never an image, never a phase."""
        return {"amplitude": self.amplitude.detach().to("cpu", copy=True)}

    def receive(self, combined: State) -> None:
        """Continue from the given amplitude, without correction."""
        if not (isinstance(combined, Mapping) and isinstance(combined.get("amplitude"), Tensor)):
            raise TypeError(
                "what is received must be like measurement(): {'amplitude': a tensor}, not " + repr(combined)
            )
        expected, given = tuple(self.amplitude.shape), tuple(combined["amplitude"].shape)
        if given != expected:
            raise ValueError(f"amplitude must be of shape {expected}, not {given}")
        if not combined["amplitude"].isfinite().all():
            raise ValueError("amplitude holds NaN or infinity: it was not received")
        self.amplitude.copy_(combined["amplitude"].clamp_min(0))  # the noise of differential privacy may be negative
        self.bias.zero_()

    def freeze(self) -> None:
        """Fix the amplitude for good: `train()` does not change that, and it is saved in the state."""
        self.frozen.fill_(1)

    def plain(self) -> nn.Module:
        """What the layer does once its amplitude is fixed, in operators that every runtime has."""
        if self.band == "none":
            return nn.Identity()
        if self.band == "dc":
            return PlainMeans(self.amplitude / self._num_pixels())
        target, changeable = self.amplitude, self.amplitude.new_ones(self.amplitude.shape[1:], dtype=torch.bool)
        if self.places is not None and self.inside is not None:
            changeable = self.inside
            target = torch.zeros(len(self.amplitude), changeable.numel(), device=self.amplitude.device)
            target = target.index_copy(1, self.places, self.amplitude.to(target.dtype)).view(-1, *changeable.shape)
        first = torch.zeros(changeable.shape, dtype=torch.bool, device=changeable.device)
        first[(0,) * changeable.ndim] = True  # the zero frequency is the mean
        return PlainSpectrum(target, changeable & ~first, self.image_shape[1:], SMALLEST_RATIO)

    def __prepare_scriptable__(self) -> nn.Module:
        """What `torch.jit.script` takes in its place, and puts there: give it a copy of a model that is to be kept."""
        if not self.frozen:
            raise RuntimeError("call freeze() first: a layer that learns cannot be scripted")
        return self.plain()


def _signed(magnitude: Tensor, sign_of: Tensor) -> Tensor:
    """The magnitude with the sign of the other, + where that is zero."""
    return torch.where(sign_of < 0, -magnitude, magnitude)
