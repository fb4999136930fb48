"""Phantom of lymph-node histology at five hospitals: normal (0) or tumor (1), after Camelyon17.

Normal tissue: small, round, dark, regular lymphocytes. Tumor: larger, irregular, paler nuclei of various size
in more cytoplasm. What an image shows is drawn alike at every hospital; how it looks follows the real ones.

Scale: at 96×96 pixels a pixel is 0.5 µm. The radius of a nucleus in pixels grows with the square root of the
image size, so that a larger image shows nuclei both larger and more numerous.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harmofl.data.images import LabelledImages
from harmofl.data.phantoms import tissue
from harmofl.data.phantoms.stain import (
    Appearance,
    photograph,
    shifted_appearance,
    site_generator,
    stain_variation,
)

# Difficulty. An image's atypia is normal with these means; its overlap bounds the accuracy that is possible.
ATYPIA = (0.22, 0.78)
ATYPIA_SPREAD = 0.13
# Each cue follows the atypia with a deviation of its own, so that no cue alone tells the label.
CUE_SPREAD = 0.22
# Radius of a nucleus (pixels at 96×96), its paleness and so on, at atypia 0 and 1.
RADIUS = (4.0, 6.6)
DARKNESS = (0.95, 0.56)
PALENESS = (0.15, 0.85)
IRREGULARITY = (0.015, 0.06)
COVERAGE = (0.52, 0.52)
CYTOPLASM = (0.35, 0.75)
SIZE_VARIATION = (0.10, 0.24)
# What says nothing about the label: how crowded the cells lie, what is between and in them, and focus.
CROWDING = (0.6, 1.0)
FIBRES = (0.15, 0.8)
BASOPHILIA = (0.10, 0.26)
DEFOCUSED = 0.06

IMAGES_PER_PATIENT = 8
REFERENCE_SIZE = 96

# Measured on five 512×512 tiles of each Camelyon17 hospital (CC0), halved to 0.5 µm per pixel: stain vectors
# by Macenko's method; strengths are the 95th percentiles of the two concentrations, background the 99.5th of
# intensity; noise from the median residual of a second-difference filter. Gamma and blur are fitted: with
# them the phantom at 96×96 has about the tiles' mean and spread of intensity and, relative to its contrast,
# their Laplacian. In the order of the fields of `Appearance`.
# fmt: off
APPEARANCES = {
    "hospital-0": Appearance(
        (0.59, 0.71, 0.39), (0.26, 0.83, 0.49), 1.86, 0.86, (1.00, 1.00, 0.99), 0.86, 0.55, 0.012),
    "hospital-1": Appearance(
        (0.57, 0.73, 0.38), (0.33, 0.83, 0.45), 1.80, 1.31, (0.97, 0.93, 0.94), 1.06, 0.49, 0.012),
    "hospital-2": Appearance(
        (0.72, 0.65, 0.26), (0.18, 0.96, 0.21), 2.00, 0.91, (0.97, 0.88, 0.97), 1.04, 0.49, 0.011),
    "hospital-3": Appearance(
        (0.57, 0.73, 0.37), (0.17, 0.86, 0.48), 2.20, 0.76, (0.98, 0.93, 0.93), 1.08, 0.55, 0.011),
    "hospital-4": Appearance(
        (0.76, 0.58, 0.29), (0.08, 0.96, 0.26), 0.90, 0.51, (0.93, 0.86, 0.92), 1.04, 0.49, 0.009),
}
# fmt: on
SITES: tuple[str, ...] = tuple(APPEARANCES)


@tissue.one_thread()
def make_site(site: str, count: int, size: int, shift: float, seed: int) -> LabelledImages:
    """Draw one hospital's images, half of them tumor; `shift` scales its look away from the mean."""
    generator = site_generator(APPEARANCES, site, seed)
    appearance = shifted_appearance(APPEARANCES, site, shift)
    labels = torch.arange(count) % 2
    patients = torch.arange(count) // IMAGES_PER_PATIENT
    variation = stain_variation(patients, generator)
    chunk = tissue.images_at_once(size)
    images = [
        photograph(*_tissue(some_labels, size, generator), appearance, some_variation, generator)
        for some_labels, some_variation in zip(torch.split(labels, chunk), torch.split(variation, chunk), strict=True)
    ]
    return LabelledImages(torch.cat(images), labels, patients)


def _population(labels: Tensor, scale: float, generator: torch.Generator) -> tissue.Population:
    shape = (len(labels),)
    atypia = torch.tensor(ATYPIA)[labels] + tissue.normal(shape, 0, ATYPIA_SPREAD, generator)

    def cue(ends: tuple[float, float]) -> Tensor:
        own = atypia + tissue.normal(shape, 0, CUE_SPREAD, generator)
        return ends[0] + (ends[1] - ends[0]) * own.clamp(-0.2, 1.2)

    return tissue.Population(
        radius=scale * cue(RADIUS),
        size_variation=cue(SIZE_VARIATION),
        irregularity=cue(IRREGULARITY),
        darkness=cue(DARKNESS),
        paleness=cue(PALENESS),
        coverage=cue(COVERAGE) * tissue.uniform(shape, *CROWDING, generator),
        cytoplasm=cue(CYTOPLASM),
        fibres=tissue.uniform(shape, *FIBRES, generator),
        basophilia=tissue.uniform(shape, *BASOPHILIA, generator),
        defocused=torch.full(shape, DEFOCUSED),
    )


def _tissue(labels: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hematoxylin and eosin (B, H, W) of one image per label."""
    scale = math.sqrt(size / REFERENCE_SIZE)
    population = _population(labels, scale, generator)
    openness = tissue.uniform((len(labels),), 0, 0.9, generator)
    gaps = tissue.tissue_gaps(len(labels), size, 6 * scale, openness, generator)
    nuclei = tissue.populate(population, gaps, generator)
    drawn = tissue.draw(nuclei, size)
    haze, eosin = tissue.surroundings(population, nuclei, gaps, scale, generator)
    return tissue.chromatin(nuclei, drawn, scale, generator) + haze, eosin
