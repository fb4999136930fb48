"""Site-level amplitude alignment: all images of a site pass one filter, which moves the site to the mean of all sites.

AmplitudeNormalization gives every image the same amplitude, and so throws away how images of one site differ. Here only
what differs between sites goes: each frequency is multiplied by (mean amplitude of all sites) / (mean amplitude of the
own site).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import torch
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from harmofl.errors import STRICT
from harmofl.methods.harmonizers import Harmonization
from harmofl.methods.layers import SMALLEST_RATIO, Band, BandLayer, ImageShape, check_band
from harmofl.methods.plain_layers import PlainGain, PlainMeanGain
from harmofl.states import State


class AmplitudeAlignment(BandLayer):
    """Multiplies each frequency inside a band by the ratio of all sites' mean amplitude to the own site's.

    At "dc" the one frequency is zero: an image's channel mean is multiplied by the ratio of the sites' means, by a
    shift of the image that leaves its contrast alone, as a narrow band around zero would. Phases stay. Until something
    is measured and received it leaves images as they are.

    Args:
        image_shape: (channels, *spatial) of the images, with one to three spatial dimensions.
        band: Which frequencies are filtered, as in AmplitudeNormalization.
        max_gain: No frequency is multiplied or divided by more. Without a limit, what a site's scanner has all but
            removed, and only noise is left of, would be blown up.
        spacing: The distance of pixels along each spatial dimension.

    Example:
        >>> layer = AmplitudeAlignment(image_shape=(1, 2, 2), band="dc")
        >>> layer.measure([torch.full((1, 1, 2, 2), 0.2), torch.full((1, 1, 2, 2), 0.4)])  # a dark site
        >>> layer.receive({"amplitude": torch.full((1, 1, 1), 4 * 0.6)})  # all sites: twice as bright
        >>> layer(torch.tensor([[[[0.1, 0.3], [0.1, 0.3]]]])).flatten()  # the mean 0.2 becomes 0.4
        tensor([0.3000, 0.5000, 0.3000, 0.5000])
    """

    own = frozenset({"own_amplitude"})
    note = "images filtered by the mean amplitude of all sites over that of its own unlabelled images"
    precise = ("amplitude", "own_amplitude")
    own_amplitude: Tensor

    def __init__(
        self,
        image_shape: ImageShape,
        band: Band = "dc",
        max_gain: float = 10.0,
        spacing: Sequence[float] | None = None,
    ) -> None:
        super().__init__(image_shape, band, spacing)
        if not max_gain >= 1:
            raise ValueError(f"max_gain must be 1 or more, not {max_gain}")
        self.max_gain = max_gain
        self.register_buffer("own_amplitude", torch.zeros_like(self.amplitude))

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"image_shape={self.image_shape}, band={self.band!r}, max_gain={self.max_gain}"

    def gain(self) -> Tensor:
        """The factor of each amplitude; 1 where the site, or all sites, have nothing but rounding error."""
        own, shared = self.own_amplitude, self.amplitude
        known = (own > SMALLEST_RATIO * own.max()) & (shared > 0)
        return torch.where(known, shared / torch.where(known, own, 1.0), 1.0).clamp(1 / self.max_gain, self.max_gain)

    def forward(self, images: Tensor) -> Tensor:
        """Filter images (N, C, *spatial)."""
        self._check(images)
        if self.band == "none" or len(images) == 0:
            return images
        precise = self._precise(images)
        change = self._change_means if self.band == "dc" else self._change_spectrum
        return (precise + change(precise)).to(images.dtype)

    def _change_means(self, images: Tensor) -> Tensor:
        return (self.gain() - 1) * images.mean(dim=self._spatial, keepdim=True)

    def _change_spectrum(self, images: Tensor) -> Tensor:
        """What the filter adds: exactly nothing where every gain is 1."""
        added = torch.fft.rfftn(images, dim=self._spatial) * self.whole_change()
        size = images.shape[-len(self._spatial) :]
        change: Tensor = torch.fft.irfftn(added, s=size, dim=self._spatial)
        return change

    def whole_change(self) -> Tensor:
        """Gain − 1 of every bin of the half spectrum, zero outside the band."""
        change = self.gain() - 1
        if self.inside is None:
            return change
        whole = change.new_zeros(self.image_shape[0], *self.inside.shape)
        whole[:, self.inside] = change
        return whole

    def plain(self) -> nn.Module:
        """What the layer does once its amplitudes are known, in operators that every runtime has."""
        if self.band == "none":
            return nn.Identity()
        if self.band == "dc":
            return PlainMeanGain(self.gain() - 1)
        return PlainGain(self.whole_change(), self.image_shape[1:])

    def measure(self, batches: Iterable[Tensor]) -> None:
        """Take the exact mean amplitude over the site's images."""
        self.own_amplitude.copy_(self._mean_amplitude(batches))

    def measurement(self) -> State:
        """The site's mean amplitude, of which the server keeps only the mean over sites."""
        return {"amplitude": self.own_amplitude.detach().to("cpu", copy=True)}

    def receive(self, combined: State) -> None:
        """Take the mean amplitude of all sites."""
        self.amplitude.copy_(combined["amplitude"])


@dataclass(frozen=True, config=STRICT)
class AlignAmplitude(Harmonization):
    """AmplitudeAlignment, measured before the first round. Nothing is aligned at band "none" or max_gain 1."""

    band: Annotated[Band, BeforeValidator(check_band)] = "dc"
    max_gain: Annotated[float, Field(ge=1)] = 10.0

    schedule = "before-training"

    def __call__(self, image_shape: ImageShape) -> AmplitudeAlignment:
        """Make the layer for images of one shape."""
        return AmplitudeAlignment(image_shape, self.band, self.max_gain)
