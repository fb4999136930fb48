"""FedRDN: each training image is normalized with the statistics of a random site, each test image with its own site's.

Yan et al., "A Simple Data Augmentation for Feature Distribution Skewed Federated Learning", CVPR 2025. As in the paper,
a site's mean and deviation are those of every image, averaged over its images, and mean and deviation of an image come
from the same site, drawn for each image in each epoch. (The code released with it draws once a batch, and the mean
apart from the deviation.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from harmofl.errors import STRICT
from harmofl.methods.bound import Bound
from harmofl.methods.combinations import Gathered
from harmofl.methods.harmonizers import Harmonization
from harmofl.methods.layers import Harmonizer, ImageShape, check_finite, check_images
from harmofl.states import State

SMALLEST_DEVIATION = 1 / 256
"""A channel that varies by less than one grey level of 8 bits holds no contrast that could be scaled."""


class SiteNormalization(Harmonizer):
    """Subtracts a site's mean and divides by its deviation, per channel: a random site's in train mode, else its own.

    Until something is measured it leaves images as they are. Random numbers are torch's own, which a federation seeds
    with the run's seed, the round and the site.

    Args:
        image_shape: (channels, *spatial) of the images; their size does not matter.

    Example:
        >>> layer = SiteNormalization(image_shape=(1, 2, 2))
        >>> layer.measure([torch.tensor([[[[0.2, 0.4], [0.2, 0.4]]], [[[0.6, 0.8], [0.6, 0.8]]]])])
        >>> layer.mean.flatten(), layer.deviation.flatten()  # of each image, then averaged
        (tensor([0.5000]), tensor([0.1000]))
        >>> layer.eval()(torch.full((1, 1, 2, 2), 0.7)).unique()
        tensor([2.])
    """

    own = frozenset({"mean", "deviation"})
    reveals_images = False
    mixes_images = False  # it trains with what the server sent back, its own site's numbers included
    note = "images normalized with the mean and deviation of its own unlabelled images"
    mean: Tensor
    deviation: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(self, image_shape: ImageShape) -> None:
        super().__init__()
        self.image_shape = tuple(image_shape)
        self._spatial = tuple(range(1 - len(image_shape), 0))
        shape = (image_shape[0], *(1 for _ in self._spatial))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("deviation", torch.ones(shape))
        # All sites', for training only: they come with every request and are no part of a finished model.
        self.register_buffer("means", torch.zeros(0, *shape), persistent=False)
        self.register_buffer("deviations", torch.ones(0, *shape), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Normalize images (N, C, *spatial)."""
        check_images(images, self.image_shape, any_size=True)
        mean, deviation = self.mean, self.deviation
        if self.training and len(self.means):
            chosen = torch.randint(len(self.means), (len(images),)).to(images.device)
            mean, deviation = self.means[chosen], self.deviations[chosen]
        return ((images - mean) / deviation.clamp_min(SMALLEST_DEVIATION)).to(images.dtype)

    @torch.no_grad()
    def measure(self, batches: Iterable[Tensor]) -> None:
        """Average the mean and the deviation of every image, per channel, over all images."""
        sums, count = torch.zeros(2, *self.mean.shape, dtype=torch.float64), 0
        for images in batches:
            check_images(images, self.image_shape, any_size=True)
            deviations, means = torch.std_mean(images.double(), dim=self._spatial, correction=0, keepdim=True)
            sums += check_finite(torch.stack([means, deviations]).sum(dim=1).cpu())
            count += len(images)
        if count == 0:
            raise ValueError("no images to measure")
        self.mean.copy_(sums[0] / count)
        self.deviation.copy_(sums[1] / count)

    def measurement(self) -> State:
        """Mean and deviation of the site's images: two numbers a channel."""
        return {"mean": self.mean.detach().cpu().clone(), "deviation": self.deviation.detach().cpu().clone()}

    def bound(self) -> Bound:
        """One half for each channel: √((mean − 1/2)² + deviation²) is how far pixels are from 1/2, root mean square."""
        grey = torch.full(self.mean.shape, 0.5)
        return Bound({"mean": grey, "deviation": torch.zeros_like(grey)}, math.sqrt(self.image_shape[0]) / 2)

    def receive(self, combined: State) -> None:
        """Take every site's statistics, named `mean.SITE` and `deviation.SITE`, to draw from in train mode."""
        sites = sorted(name.removeprefix("mean.") for name in combined if name.startswith("mean."))
        self.means = torch.stack([combined[f"mean.{site}"] for site in sites]).to(self.mean)
        self.deviations = torch.stack([combined[f"deviation.{site}"] for site in sites]).to(self.mean)


@dataclass(frozen=True, config=STRICT)
class NormalizeBySite(Harmonization):
    """SiteNormalization: sites measure before the first round, and every site receives the statistics of all."""

    combine = Gathered
    schedule = "before-training"

    def __call__(self, image_shape: ImageShape) -> SiteNormalization:
        """Make the layer for images of one shape."""
        return SiteNormalization(image_shape)
