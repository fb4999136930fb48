"""How images look, in numbers: low-level statistics, a plane to see them in, and how well they tell the hospital."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harmofl.data.images import seed_of

PERCENTILES = (5, 25, 50, 75, 95)
MOST_SORTED = 2**12
"""Pixels of a channel from which percentiles are taken."""
RINGS = 8
"""Rings of the spectrum whose mean log-amplitudes are statistics."""

FAINTEST = 1e-6
"""Amplitudes below this part of an image full of ones hold rounding error."""

SMALLEST_SPREAD = 1e-4
"""In intensities and decades: what varies less is the same everywhere, and would be noise if it were standardized."""

FOLDS = 5
PENALTY = 1e-3
"""Weight of the squared weights of the probe beside its mean loss."""


def statistics(images: Tensor) -> Tensor:
    """Describe images (N, C, H, W) by rows: per channel mean, std, skewness, percentiles, rings of the spectrum."""
    pixels = images.double().flatten(2)
    mean = pixels.mean(dim=2, keepdim=True)
    deviation = pixels - mean
    std = deviation.square().mean(dim=2, keepdim=True).sqrt()
    skewness = deviation.pow(3).mean(dim=2, keepdim=True) / std.clamp_min(FAINTEST).pow(3)
    rings = ring_means(log_amplitudes(images), RINGS)
    return torch.cat([mean, std, skewness, _percentiles(pixels), rings], dim=2).flatten(1)


def _percentiles(pixels: Tensor) -> Tensor:
    """Percentiles (N, C, levels) of pixels (N, C, P), or of every k-th if they are many: sorting is what takes time."""
    step = math.ceil(pixels.shape[2] / MOST_SORTED)
    levels = torch.tensor(PERCENTILES, dtype=torch.float32, device=pixels.device) / 100
    percentiles: Tensor = torch.quantile(pixels[..., ::step].float(), levels, dim=2).movedim(0, 2).double()
    return percentiles


def log_amplitudes(images: Tensor) -> Tensor:
    """The decimal logarithm of each frequency's amplitude per pixel, the whole spectrum (N, C, H, W)."""
    spectrum = torch.fft.fft2(images.double(), norm="forward")
    logarithms: Tensor = spectrum.abs().clamp_min(FAINTEST).log10()
    return logarithms


def ring_means(spectrum: Tensor, rings: int) -> Tensor:
    """Average a spectrum (…, H, W) over rings of equal width around the zero frequency, which belongs to none.

    The last ring ends at half a cycle per pixel and takes the corners too; a ring without a frequency is 0.
    """
    height, width = spectrum.shape[-2:]
    vertical, horizontal = (torch.fft.fftfreq(length, dtype=torch.float64) for length in (height, width))
    radius = torch.hypot(vertical[:, None], horizontal[None, :])
    ring = (radius * 2 * rings).ceil().long().clamp_max(rings)  # 0: the zero frequency
    members = F.one_hot(ring.flatten(), rings + 1)[:, 1:].to(spectrum)
    return spectrum.flatten(-2) @ (members / members.sum(dim=0).clamp_min(1))


def standardize(values: Tensor, reference: Tensor) -> Tensor:
    """Columns shifted and scaled so that those of the reference have mean 0 and std 1, unless they hardly vary."""
    spread = reference.std(dim=0, correction=0).clamp_min(SMALLEST_SPREAD)
    return (values - reference.mean(dim=0)) / spread


@dataclass(frozen=True)
class Plane:
    """The plane in which some images differ most, and in which others can be seen as well."""

    reference: Tensor
    axes: Tensor
    """(statistics, 2), orthonormal."""
    shares: tuple[float, float]
    """Of the reference's variance along each axis."""

    @classmethod
    def of(cls, values: Tensor) -> Plane:
        """The first two principal components of standardized statistics."""
        _, sizes, directions = torch.linalg.svd(standardize(values, values), full_matrices=False)
        axes = directions[:2].T
        largest = axes.abs().argmax(dim=0)
        axes = axes * axes.gather(0, largest[None]).sign()  # either direction would do: always the same one
        shares = (sizes.square() / sizes.square().sum().clamp_min(FAINTEST)).tolist()
        return cls(values, axes, (shares[0], shares[1]))

    def places(self, values: Tensor) -> Tensor:
        """Where images lie in the plane, (N, 2)."""
        return standardize(values, self.reference) @ self.axes


@dataclass(frozen=True)
class Probe:
    """How well a linear classifier guesses the hospital of images that it was not fitted to."""

    per_site: tuple[float, ...]
    """The part of each hospital's images that is guessed right."""
    folds: int

    @property
    def accuracy(self) -> float:
        """The mean over hospitals, so that large ones do not count more."""
        return sum(self.per_site) / len(self.per_site)

    @property
    def chance(self) -> float:
        """What a guess without looking reaches."""
        return 1 / len(self.per_site)


def probe_site(values: Tensor, sites: Tensor, groups: Tensor, seed: int = 0) -> Probe:
    """Guess the hospital from statistics, by logistic regression; a patient is never on both sides.

    sites:  (N,) from 0 on
    groups: (N,) patients, numbered at each hospital for itself
    """
    folds = folds_of(sites, groups, seed)
    guesses = torch.empty_like(sites)
    for fold in torch.unique(folds):
        held_out = folds == fold
        weights = fit_linear(standardize(values[~held_out], values[~held_out]), sites[~held_out])
        guesses[held_out] = scores_of(standardize(values[held_out], values[~held_out]), weights).argmax(dim=1)
    right = (guesses == sites).double()
    per_site = [float(right[sites == site].mean()) for site in torch.unique(sites)]
    return Probe(tuple(per_site), int(folds.max()) + 1)


def folds_of(sites: Tensor, groups: Tensor, seed: int) -> Tensor:
    """A fold for each image: every hospital's patients dealt out, as many folds as the one with fewest allows.

    A hospital with a single patient deals out its images.
    """
    members = {int(site): _number_groups(groups[sites == site]) for site in torch.unique(sites)}
    count = min(FOLDS, *(int(own.max()) + 1 for own in members.values()))
    folds = torch.empty_like(sites)
    for site, own in members.items():
        generator = torch.Generator().manual_seed(seed_of(seed, site, "folds"))
        order = torch.randperm(int(own.max()) + 1, generator=generator).to(own.device)
        folds[sites == site] = order[own] % count
    return folds


def _number_groups(groups: Tensor) -> Tensor:
    numbers = torch.unique(groups, return_inverse=True)[1]
    return numbers if int(numbers.max()) > 0 else torch.arange(len(groups), device=groups.device)


def scores_of(values: Tensor, weights: Tensor) -> Tensor:
    """A score for each class; the last row of the weights is added."""
    return values @ weights[:-1] + weights[-1]


def fit_linear(values: Tensor, labels: Tensor) -> Tensor:
    """Weights of a multinomial logistic regression in which every class counts the same."""
    counts = torch.bincount(labels).double()
    importance = (1 / (len(counts) * counts))[labels]
    weights = values.new_zeros((values.shape[1] + 1, len(counts)), requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = F.cross_entropy(scores_of(values, weights), labels, reduction="none")
        loss = (importance * losses).sum() + PENALTY / 2 * weights[:-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()
