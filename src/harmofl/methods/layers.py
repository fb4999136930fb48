"""The layers that stand before the network: what happens to images.

A layer measures its site, the server combines what the sites measured, and every site applies the result. Buffers named
in `own` stay at the site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from harmofl.methods.bound import Bound
from harmofl.states import State

Band = Literal["none", "dc", "full"] | float
ImageShape = tuple[int, ...]
"""(channels, *spatial): of one, two or three spatial dimensions."""

SMALLEST_RATIO = 1e-6
"""Bins below this part of the image's largest amplitude hold rounding error, no phase: they stay as they are."""


def largest_radius(spacing: Sequence[float]) -> float:
    """The corner of the spectrum, √Σ(½/spacing)², rounded up to two decimals: 0.71 cycles per pixel of an image."""
    return math.ceil(100 * math.hypot(*(0.5 / step for step in spacing))) / 100


def check_band(band: Any, largest: float = largest_radius((1, 1)), unit: str = "pixel") -> Band:
    """Return a valid band or say which there are."""
    if isinstance(band, str) and band in ("none", "dc", "full"):
        return band  # type: ignore[return-value]
    if isinstance(band, (int, float)) and not isinstance(band, bool) and 0 < band <= largest:
        return float(band)
    raise ValueError(f"'none', 'dc', 'full' or a radius above 0 and up to {largest} (cycles per {unit})")


class Harmonizer(nn.Module):
    """Leaves images as they are: the base of all harmonizers, and the identity."""

    own: frozenset[str] = frozenset()
    """Names of the buffers that never leave the site."""

    repeatable = False
    """Whether an image comes out the same every time while nothing is learned, so that it may be kept."""

    learns = False
    """Whether images still change it in this round; set by the method's piece that made the layer."""

    reveals_images = True
    """Whether what it tells the server could give an image away, were it measured on very few."""

    note = ""
    """What a table says of a score at a hospital that took no part, if the layer has been measured there."""

    def could_reveal_images(self) -> bool:
        """Whether a site with few images must keep its measurement to itself; without one there is nothing to keep."""
        return self.reveals_images and bool(self.measurement())

    def forward(self, images: Tensor) -> Tensor:
        """Harmonize a batch of images (N, C, H, W)."""
        return images

    def measure(self, batches: Iterable[Tensor]) -> None:
        """Learn from one pass over the site's training images."""

    def measurement(self) -> State:
        """What this site tells the server: the same names, shapes and types from the start, before it is measured."""
        return {}

    def bound(self) -> Bound | None:
        """The bound on the measurement of any images in [0, 1]; None: unknown, so it cannot be made private."""
        return None

    @property
    def mixes_images(self) -> bool:
        """Whether, in training, what becomes of an image depends on the site's other images."""
        return bool(self.own)

    def receive(self, combined: State) -> None:
        """Take what the server made of all sites' measurements."""

    def freeze(self) -> None:
        """From now on nothing more is learned from images."""


class BandLayer(Harmonizer):
    """What layers that change amplitudes inside a band have in common: the band, its bins, and mean amplitudes."""

    repeatable = True
    precise: tuple[str, ...] = ("amplitude",)
    """Buffers that keep single precision at least, as sums over pixels overflow half of it."""
    amplitude: Tensor
    places: Tensor | None
    """The bins of the half spectrum inside the radius, numbered as in the flat one; None at other bands."""

    def __init__(self, image_shape: ImageShape, band: Band, spacing: Sequence[float] | None) -> None:
        super().__init__()
        if not _is_shape(image_shape):
            raise ValueError(
                "image_shape must be (channels, height, width), or have one or three spatial dimensions, not "
                f"{image_shape}"
            )
        self.image_shape: ImageShape = tuple(image_shape)
        self._spatial = tuple(range(1 - len(image_shape), 0))
        self.spacing = _check_spacing(spacing, len(self._spatial))
        try:
            unit = "pixel" if spacing is None else "unit of spacing"
            self.band = check_band(band, largest_radius(self.spacing), unit)
        except ValueError as error:
            raise ValueError(f"band must be {error}, not {band!r}") from None
        self.reveals_images = self.band not in ("none", "dc")  # a spectrum could; a mean of a channel holds no image
        self.register_buffer("places", self._places_inside(), persistent=False)
        self.register_buffer("amplitude", torch.zeros(self._amplitude_shape()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and cast as all modules, but keep the precision of what must be precise."""
        before = {name: self._buffers[name] for name in self.precise}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype.itemsize < torch.float32.itemsize:
                self._buffers[name] = old.to(new.device)
        return self

    def _places_inside(self) -> Tensor | None:
        if isinstance(self.band, str):
            return None
        *sizes, last = zip(self.image_shape[1:], self.spacing, strict=True)
        frequencies = [torch.fft.fftfreq(size, step) for size, step in sizes] + [torch.fft.rfftfreq(*last)]
        radii = torch.zeros(())
        for axis in torch.meshgrid(*frequencies, indexing="ij"):
            radii = torch.hypot(radii, axis)
        return (radii <= self.band).flatten().nonzero().flatten()

    @property
    def inside(self) -> Tensor | None:
        """Which bins of the half spectrum lie inside the radius; None at other bands."""
        if self.places is None:
            return None
        *sizes, last = self.image_shape[1:]
        shape = (*sizes, last // 2 + 1)
        # Kept as numbers: what averages a model's buffers cannot average yes and no.
        flat = torch.zeros(math.prod(shape), dtype=torch.bool, device=self.places.device)
        return flat.index_fill(0, self.places, True).view(shape)

    def plain(self) -> nn.Module:
        """What the layer does once its amplitudes are fixed, in operators that every runtime has."""
        raise NotImplementedError

    def _amplitude_shape(self) -> tuple[int, ...]:
        channels, *spatial, last = self.image_shape
        if self.band == "none":
            return (channels, 0)
        if self.band == "dc":
            return (channels, *(1 for _ in self._spatial))
        if self.band == "full":
            return (channels, *spatial, last // 2 + 1)
        assert self.places is not None
        return (channels, len(self.places))  # only what lies inside the band is learned, kept and sent

    def bound(self) -> Bound:
        """Half the number of pixels for each channel, around the amplitude of grey images.

        No image x in [0, 1] is farther than 1/2 from grey in any pixel. So by Parseval's theorem the spectra of N
        pixels are at most √(N Σ (x − 1/2)²) ≤ N/2 apart, and amplitudes are no farther apart than spectra.
        """
        centre, half = torch.zeros(self.amplitude.shape), self._num_pixels() / 2
        centre.flatten(1)[:, :1] = half  # the zero frequency is the first; the others of a grey image are 0
        return Bound({"amplitude": centre}, half * math.sqrt(self.image_shape[0]) if centre.numel() else 0.0)

    def _check(self, images: Tensor) -> None:
        check_images(images, self.image_shape, any_size=self.band in ("none", "dc"))

    def _precise(self, images: Tensor) -> Tensor:
        """Images in the precision of the amplitude."""
        return images.to(self.amplitude.dtype)

    def _num_pixels(self) -> int:
        return math.prod(self.image_shape[1:])

    def _inside(self, amplitudes: Tensor) -> Tensor:
        return amplitudes if self.places is None else amplitudes.flatten(-len(self._spatial))[..., self.places]

    def _amplitudes(self, images: Tensor) -> Tensor:
        if self.band == "dc":
            return images.mean(dim=self._spatial, keepdim=True).abs() * self._num_pixels()
        return self._inside(torch.fft.rfftn(images, dim=self._spatial).abs())

    @torch.no_grad()
    def _mean_amplitude(self, batches: Iterable[Tensor]) -> Tensor:
        """The exact mean over all images of batches."""
        total, count = torch.zeros(self.amplitude.shape, dtype=torch.float64), 0
        for images in batches:
            self._check(images)
            if self.band == "none":
                return total
            if len(images) > 0:
                total += check_finite(self._amplitudes(self._precise(images)).cpu().sum(dim=0, dtype=torch.float64))
                count += len(images)
        if count == 0:
            raise ValueError("no images to measure")
        return total / count


def _is_shape(given: object) -> bool:
    """Whether it is a number of channels with one to three sizes."""
    is_long_enough = isinstance(given, Sequence) and len(given) in (2, 3, 4)
    return is_long_enough and all(isinstance(size, Integral) and size > 0 for size in given)  # type: ignore[operator, attr-defined]


def _check_spacing(spacing: Sequence[float] | None, num_dimensions: int) -> tuple[float, ...]:
    steps = (1.0,) * num_dimensions if spacing is None else tuple(map(float, spacing))
    if len(steps) != num_dimensions or not all(step > 0 for step in steps):
        raise ValueError(f"spacing must be {num_dimensions} numbers above 0, not {spacing!r}")
    return steps


def check_images(images: Tensor, image_shape: ImageShape, any_size: bool) -> None:
    """Raise an error for images that a layer made for a shape (C, *spatial) cannot take."""
    if not isinstance(images, Tensor):
        raise TypeError(
            f"images must be a tensor, not {type(images).__name__}: of a loader of pairs, pass the images only, as in "
            "measure(images for images, _ in loader)"
        )
    if not images.is_floating_point():
        raise TypeError(f"images must be floating-point numbers scaled to [0, 1], not {images.dtype}")
    same_kind = images.ndim == len(image_shape) + 1 and images.shape[1] == image_shape[0]
    if not same_kind or (not any_size and images.shape[1:] != image_shape):
        raise ValueError(f"images must be (N, {', '.join(map(str, image_shape))}), not {tuple(images.shape)}")


def check_finite(measured: Tensor) -> Tensor:
    """Raise an error for NaN and infinity: a single one would stay in an average forever."""
    if not measured.isfinite().all():
        raise ValueError("images hold NaN or infinity: nothing was learned from them")
    return measured
