"""Phantom of nuclei segmentation at six sites, with each nucleus's mask, after MoNuSAC, MoNuSeg and TNBC.

Among the nuclei, some pale or out of focus, lie things that are not nuclei: dark debris, red blood cells,
eosinophilic granules and the faint ghosts of nuclei in the section's depth. A mask is exactly where its
nucleus was drawn.

Scale: at 128×128 pixels a pixel is 0.5 µm. The radius of a nucleus in pixels grows with the square root of
the image size, so that a larger image shows nuclei both larger and more numerous.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from harmofl.data.images import LabelledImages
from harmofl.data.phantoms import tissue
from harmofl.data.phantoms.stain import (
    Appearance,
    blurred,
    photograph,
    shifted_appearance,
    site_generator,
    stain_variation,
)

# Difficulty: how dark nuclei are, how vesicular, how many are out of focus, how much hematoxylin their
# cytoplasm takes up, and how much of the tissue is covered by each kind of thing that is not a nucleus.
DARKNESS = (0.36, 0.95)
PALENESS = (0.1, 1.0)
DEFOCUSED = (0.0, 0.4)
BASOPHILIA = (0.08, 0.38)
GHOST_COVERAGE = 0.04
DEBRIS_COVERAGE = 0.02
RED_CELL_COVERAGE = 0.03
GRANULE_COVERAGE = 0.012
# An image's cells lie between small, round, dark ones (lymphocytes) and large, irregular ones (epithelium).
RELATIVE_RADIUS = (0.72, 1.25)
IRREGULARITY = (0.015, 0.06)
CYTOPLASM = (0.35, 0.75)
FIBRES = (0.2, 0.8)

IMAGES_PER_PATIENT = 4
REFERENCE_SIZE = 128


@dataclass(frozen=True)
class Content:
    """A site's nuclei: radius in pixels of 0.5 µm, fraction of the image covered, relative hematoxylin."""

    radius: float
    coverage: float
    contrast: float


# Measured on about 140 tiles of 128×128 pixels at 0.5 µm of each site (MoNuSAC2020 and MoNuSeg2018
# CC BY-NC-SA 4.0, TNBC CC BY 4.0): stain vectors by Macenko's method; strengths are the 95th percentiles of
# the two concentrations, background the 99.5th of intensity; noise from the median residual of a
# second-difference filter. Gamma and blur are fitted: with them the phantom at 128×128 has about the tiles'
# mean and spread of intensity and, relative to its contrast, their Laplacian. In the order of the fields of
# `Appearance`.
# fmt: off
APPEARANCES = {
    "MoNuSAC-kidney": Appearance(
        (0.62, 0.71, 0.33), (0.07, 0.90, 0.42), 1.85, 1.41, (0.98, 0.93, 0.95), 1.08, 0.40, 0.008),
    "MoNuSAC-lung": Appearance(
        (0.59, 0.73, 0.36), (0.06, 0.79, 0.61), 1.75, 0.90, (0.97, 0.95, 0.96), 1.10, 0.21, 0.016),
    "MoNuSAC-breast": Appearance(
        (0.66, 0.66, 0.36), (0.10, 0.87, 0.48), 1.45, 0.70, (0.98, 0.97, 0.97), 0.84, 0.46, 0.009),
    "MoNuSAC-prostate": Appearance(
        (0.64, 0.69, 0.34), (0.08, 0.82, 0.57), 1.63, 1.01, (0.99, 0.97, 0.98), 1.04, 0.21, 0.011),
    "MoNuSeg": Appearance(
        (0.59, 0.73, 0.34), (0.25, 0.86, 0.44), 1.66, 1.20, (1.00, 1.00, 1.00), 0.88, 0.47, 0.011),
    "TNBC": Appearance(
        (0.63, 0.71, 0.31), (0.23, 0.69, 0.68), 0.67, 0.34, (0.95, 0.91, 0.95), 1.06, 0.21, 0.015),
}
# fmt: on
# Of the same tiles: the median radius of the masks' components, the masks' share of the image, and the
# optical density of nuclei above that around them, relative to the site's stain and to the mean site.
CONTENTS = {
    "MoNuSAC-kidney": Content(5.8, 0.194, 0.94),
    "MoNuSAC-lung": Content(6.3, 0.218, 0.82),
    "MoNuSAC-breast": Content(5.5, 0.205, 1.04),
    "MoNuSAC-prostate": Content(6.2, 0.193, 0.86),
    "MoNuSeg": Content(5.4, 0.232, 1.09),
    "TNBC": Content(5.3, 0.142, 1.24),
}
SITES: tuple[str, ...] = tuple(APPEARANCES)


@tissue.one_thread()
def make_site(site: str, count: int, size: int, shift: float, seed: int) -> LabelledImages:
    """Draw one site's images with instance masks; `shift` scales look and nuclei away from the mean."""
    generator = site_generator(APPEARANCES, site, seed)
    appearance = shifted_appearance(APPEARANCES, site, shift)
    content = shifted_content(site, shift)
    patients = torch.arange(count) // IMAGES_PER_PATIENT
    images, masks = [], []
    for variation in torch.split(stain_variation(patients, generator), tissue.images_at_once(size)):
        hematoxylin, eosin, mask = _tissue(len(variation), size, content, generator)
        images.append(photograph(hematoxylin, eosin, appearance, variation, generator))
        masks.append(mask)
    return LabelledImages(torch.cat(images), torch.cat(masks), patients)


def shifted_content(site: str, shift: float) -> Content:
    """Geometric mean over sites · (site / mean) to the power of shift."""
    logarithms = {name: torch.tensor(astuple(content)).log() for name, content in CONTENTS.items()}
    mean = torch.stack(list(logarithms.values())).mean(0)
    radius, coverage, contrast = (mean + shift * (logarithms[site] - mean)).exp().tolist()
    return Content(radius, min(coverage, 0.5), contrast)


def _population(batch: int, scale: float, content: Content, generator: torch.Generator) -> tissue.Population:
    kind = torch.rand(batch, generator=generator)

    def cue(ends: tuple[float, float]) -> Tensor:
        own = kind + tissue.normal((batch,), 0, 0.2, generator)
        return ends[0] + (ends[1] - ends[0]) * own.clamp(0, 1)

    return tissue.Population(
        radius=scale * content.radius * cue(RELATIVE_RADIUS),
        size_variation=tissue.uniform((batch,), 0.1, 0.25, generator),
        irregularity=cue(IRREGULARITY),
        darkness=content.contrast * cue((DARKNESS[1], DARKNESS[0])),
        paleness=cue(PALENESS),
        coverage=content.coverage * tissue.uniform((batch,), 0.6, 1.8, generator),
        cytoplasm=cue(CYTOPLASM),
        fibres=tissue.uniform((batch,), *FIBRES, generator),
        basophilia=tissue.uniform((batch,), *BASOPHILIA, generator),
        defocused=tissue.uniform((batch,), *DEFOCUSED, generator),
    )


def _tissue(batch: int, size: int, content: Content, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Hematoxylin, eosin and instance masks, each (B, H, W)."""
    scale = math.sqrt(size / REFERENCE_SIZE)
    population = _population(batch, scale, content, generator)
    openness = tissue.uniform((batch,), 0, 1, generator)
    gaps = tissue.tissue_gaps(batch, size, 10 * scale, openness, generator)
    nuclei = tissue.populate(population, gaps, generator)
    drawn = tissue.draw(nuclei, size)
    haze, eosin = tissue.surroundings(population, nuclei, gaps, scale, generator)
    hematoxylin = tissue.chromatin(nuclei, drawn, scale, generator) + haze

    free = (drawn.place == 0).float()
    # Ghosts are nuclei in the depth of the section, too faint for anyone to outline them.
    ghosts = _specks(batch, size, scale * content.radius, GHOST_COVERAGE, generator)
    debris = _specks(batch, size, 2.2 * scale, DEBRIS_COVERAGE, generator)
    red_cells = _specks(batch, size, 3.6 * scale, RED_CELL_COVERAGE, generator)
    granules = _specks(batch, size, 1.0 * scale, GRANULE_COVERAGE, generator)
    hematoxylin = hematoxylin + 0.4 * (1 - gaps) * blurred(ghosts, tissue.DEFOCUS * scale)
    hematoxylin = hematoxylin + 0.75 * blurred(free * debris, 0.5)
    eosin = eosin + blurred(free * (1.1 * red_cells + 0.7 * granules), 0.5)
    return hematoxylin, eosin, tissue.instances(drawn, nuclei.radius.shape[1])


def _specks(batch: int, size: int, radius: float, coverage: float, generator: torch.Generator) -> Tensor:
    """Masks (B, H, W) of roundish things; images have from none to twice the mean coverage."""
    flat = torch.zeros(batch)
    specks = tissue.Population(
        radius=torch.full((batch,), radius),
        size_variation=flat + 0.4,
        irregularity=flat + 0.03,
        darkness=flat,
        paleness=flat,
        coverage=2 * coverage * torch.rand(batch, generator=generator),
        cytoplasm=flat,
        fibres=flat,
        basophilia=flat,
        defocused=flat,
    )
    nowhere = torch.zeros(batch, size, size)
    return (tissue.draw(tissue.populate(specks, nowhere, generator), size).place > 0).float()
