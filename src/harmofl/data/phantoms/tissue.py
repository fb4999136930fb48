"""Tissue as dye concentrations: nuclei with exact masks, the cells around them, fibres between, and gaps.

Everything is drawn for a batch of images at once. Concentrations are relative: hematoxylin 1 is a dark
nucleus, eosin 1 is dense collagen; `stain.photograph` makes a picture of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from harmofl.data.phantoms.stain import blurred

# Pixels of all images drawn at once: bounds the memory, and keeps it within the processor's cache.
PIXELS_AT_ONCE = 150_000
# The outline of a nucleus is an ellipse whose radius is modulated by waves with these numbers of periods.
WAVES = (2, 3, 4)
LARGEST_OUTLINE = 1.25
PUSHES = 10
SIZE_CLASSES = 12
ELBOW_ROOM = 1.12
CELL_RADIUS = 1.75
# Blur in pixels of 0.5 µm of what lies outside the focal plane.
DEFOCUS = 2.2


@dataclass(frozen=True)
class Population:
    """What the nuclei of each image are like, all (B,).

    radius, size_variation:  median in pixels, and standard deviation of its logarithm
    irregularity:            size of the outline's waves relative to the radius
    darkness, paleness:      as in `Nuclei`
    coverage:                fraction of the tissue that nuclei cover
    cytoplasm, fibres:       eosin within cells, and between them
    basophilia:              hematoxylin within cells, outside their nuclei
    defocused:               fraction of nuclei outside the focal plane
    """

    radius: Tensor
    size_variation: Tensor
    irregularity: Tensor
    darkness: Tensor
    paleness: Tensor
    coverage: Tensor
    cytoplasm: Tensor
    fibres: Tensor
    basophilia: Tensor
    defocused: Tensor


@dataclass(frozen=True)
class Nuclei:
    """Parameters of the nuclei of B images with K places each; all (B, K) unless said.

    centers:     (B, K, 2) row and column
    radius:      of the disk with the ellipse's area, in pixels; 0 where the place is empty
    elongation:  ratio of the ellipse's axes
    angle:       of the long axis
    waves:       (B, K, len(WAVES), 2) cosine and sine amplitudes of the outline, relative to the radius
    darkness:    hematoxylin concentration
    paleness:    0 solid chromatin … 1 vesicular: bright inside, dark rim and nucleolus
    defocused:   whether the nucleus lies outside the focal plane
    """

    centers: Tensor
    radius: Tensor
    elongation: Tensor
    angle: Tensor
    waves: Tensor
    darkness: Tensor
    paleness: Tensor
    defocused: Tensor


@dataclass(frozen=True)
class NucleusMap:
    """Which nucleus covers each pixel, all (B, H, W).

    place:     index of the nucleus plus 1, 0 where there is none
    depth:     0 at the outline … 1 at the center
    row, column: position within the nucleus, in radii
    """

    place: Tensor
    depth: Tensor
    row: Tensor
    column: Tensor


@contextmanager
def one_thread() -> Iterator[None]:
    """Draw on one thread: the bits then depend on no machine's threads, and these small steps go faster."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def images_at_once(size: int) -> int:
    """How many images of a size to draw in one batch."""
    return max(1, PIXELS_AT_ONCE // size**2)


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    """Uniform random numbers."""
    return low + (high - low) * torch.rand(shape, generator=generator)


def normal(shape: tuple[int, ...], mean: float, spread: float, generator: torch.Generator) -> Tensor:
    """Normal random numbers cut at two standard deviations, so that no parameter becomes absurd."""
    return mean + spread * torch.randn(shape, generator=generator).clamp(-2, 2)


def smooth_noise(batch: int, size: int, scale: float, generator: torch.Generator) -> Tensor:
    """Noise (B, H, W) of unit variance, smooth over `scale` pixels."""
    rows, columns = _frequencies(size)
    return _filtered(torch.exp(-2 * (math.pi * scale) ** 2 * (rows**2 + columns**2))[None], batch, generator)


def fibre_noise(batch: int, size: int, width: float, length: float, generator: torch.Generator) -> Tensor:
    """Noise (B, H, W) of unit variance drawn out along wavy strands, each image with its own direction."""
    angle = uniform((batch, 1, 1), 0, math.pi, generator)
    rows, columns = _frequencies(size)
    along = rows * angle.sin() + columns * angle.cos()
    across = columns * angle.sin() - rows * angle.cos()
    strands = _filtered(torch.exp(-2 * math.pi**2 * ((length * along) ** 2 + (width * across) ** 2)), batch, generator)
    return _warped(strands, 3 * width * smooth_noise(batch, size, length, generator), angle)


def _frequencies(size: int) -> tuple[Tensor, Tensor]:
    frequencies = torch.fft.fftfreq(size)
    return frequencies[:, None], frequencies[None, :]


def _filtered(transfer: Tensor, batch: int, generator: torch.Generator) -> Tensor:
    size = transfer.shape[-1]
    white = torch.randn(batch, size, size, generator=generator)
    energy = transfer.square().mean((-2, -1), keepdim=True).sqrt()
    half = transfer[..., : size // 2 + 1] / energy
    filtered: Tensor = torch.fft.irfft2(torch.fft.rfft2(white) * half, s=(size, size))
    return filtered


def _warped(images: Tensor, displacement: Tensor, angle: Tensor) -> Tensor:
    size = images.shape[-1]
    steps = torch.linspace(-1, 1, size)
    shift = 2 * displacement / size
    columns = steps[None, None, :] - shift * angle.sin()
    rows = steps[None, :, None] + shift * angle.cos()
    grid = torch.stack([columns, rows], -1)
    return F.grid_sample(images[:, None], grid, padding_mode="reflection", align_corners=True)[:, 0]


def tissue_gaps(batch: int, size: int, scale: float, openness: Tensor, generator: torch.Generator) -> Tensor:
    """White spaces (B, H, W) between 0 and 1 (lumen, fat, torn tissue), more for a larger openness (B,)."""
    threshold = 2.6 - 1.6 * openness[:, None, None]
    return torch.sigmoid(8 * (smooth_noise(batch, size, scale, generator) - threshold))


def populate(population: Population, gaps: Tensor, generator: torch.Generator) -> Nuclei:
    """Draw nuclei of each image's population and pack them side by side, leaving the gaps empty."""
    size = gaps.shape[-1]
    margin = float(population.radius.max())
    area = (size + 2 * margin) ** 2
    places = math.ceil(float((population.coverage * area / (math.pi * population.radius**2)).max()))
    shape = (len(gaps), places)
    radius = population.radius[:, None] * (population.size_variation[:, None] * normal(shape, 0, 1, generator)).exp()
    covered = (math.pi * radius**2).cumsum(1) / area
    radius = torch.where(covered <= population.coverage[:, None], radius, torch.zeros_like(radius))
    centers = uniform((*shape, 2), -margin, size + margin, generator)
    centers = pushed_apart(centers, radius * ELBOW_ROOM)
    pixel = centers.long().clamp(0, size - 1)
    in_gap = gaps.flatten(1).gather(1, pixel[..., 0] * size + pixel[..., 1]) > 0.5
    irregularity = population.irregularity[:, None]
    return Nuclei(
        centers=centers,
        radius=radius.masked_fill(in_gap, 0),
        elongation=1 + uniform(shape, 0, 1, generator).square() * (0.3 + 14 * irregularity),
        angle=uniform(shape, 0, math.pi, generator),
        waves=normal((*shape, len(WAVES), 2), 0, 1, generator) * irregularity[..., None, None],
        darkness=population.darkness[:, None] * normal(shape, 0, 0.16, generator).exp(),
        paleness=(population.paleness[:, None] + normal(shape, 0, 0.15, generator)).clamp(0, 1),
        defocused=torch.rand(shape, generator=generator) < population.defocused[:, None],
    )


def pushed_apart(centers: Tensor, reach: Tensor) -> Tensor:
    """Centers moved until disks of the given reach hardly overlap; empty places (reach 0) push nobody."""
    reach = torch.where(reach > 0, reach, torch.full_like(reach, -math.inf))
    allowed = reach[:, :, None] + reach[:, None, :]
    allowed.diagonal(dim1=1, dim2=2).fill_(-math.inf)
    for _ in range(PUSHES):
        rows, columns = (centers[..., axis, None] - centers[..., None, :, axis] for axis in (0, 1))
        distance = (rows.square() + columns.square()).sqrt_().clamp_(min=1e-3)
        push = (allowed / distance - 1).clamp_(min=0)
        centers = centers + 0.3 * torch.stack([(rows * push).sum(2), (columns * push).sum(2)], -1)
    return centers


@dataclass(frozen=True)
class _Footprints:
    """The pixels that nuclei cover, nucleus after nucleus: each (P,)."""

    pixel: Tensor
    number: Tensor
    depth: Tensor
    row: Tensor
    column: Tensor


def draw(nuclei: Nuclei, size: int) -> NucleusMap:
    """Find for each pixel the nucleus that covers it; where nuclei overlap the one whose center is nearer."""
    batch = len(nuclei.radius)
    extent = nuclei.radius * nuclei.elongation.sqrt() * LARGEST_OUTLINE
    within = (nuclei.centers > -extent[..., None]) & (nuclei.centers < size + extent[..., None])
    image, slot = ((extent > 0) & within.all(-1)).nonzero(as_tuple=True)
    # Nuclei of similar size share one window, so that small ones are not drawn in the windows of the largest.
    order = extent[image, slot].argsort()
    parts = [_footprints(nuclei, image[part], slot[part], size) for part in order.tensor_split(SIZE_CLASSES)]
    pixel = torch.cat([part.pixel for part in parts])
    depth = torch.cat([part.depth for part in parts])
    deepest = torch.zeros(batch * size * size).scatter_reduce_(0, pixel, depth, "amax")
    nearest = (deepest[pixel] == depth).nonzero()[:, 0]

    def plane(values: list[Tensor]) -> Tensor:
        flat = torch.zeros(batch * size * size, dtype=values[0].dtype)
        flat[pixel[nearest]] = torch.cat(values)[nearest]
        return flat.view(batch, size, size)

    return NucleusMap(
        place=plane([part.number for part in parts]),
        depth=deepest.view(batch, size, size),
        row=plane([part.row for part in parts]),
        column=plane([part.column for part in parts]),
    )


def _footprints(nuclei: Nuclei, image: Tensor, slot: Tensor, size: int) -> _Footprints:
    """Pixels inside the outlines of some nuclei (M,), by testing a square window around each."""
    center, radius = nuclei.centers[image, slot], nuclei.radius[image, slot]
    stretch = nuclei.elongation[image, slot].sqrt()
    reach = math.ceil(float((radius * stretch).max()) * LARGEST_OUTLINE) if len(image) else 0
    steps = torch.arange(-reach, reach + 1)
    rows = (center[:, 0].floor().long()[:, None] + steps)[:, :, None]
    columns = (center[:, 1].floor().long()[:, None] + steps)[:, None, :]
    row = (rows - center[:, 0, None, None]) / radius[:, None, None]
    column = (columns - center[:, 1, None, None]) / radius[:, None, None]
    level = _level(row, column, nuclei.angle[image, slot], stretch, nuclei.waves[image, slot])
    inside = (level < 1) & (rows >= 0) & (rows < size) & (columns >= 0) & (columns < size)
    which, down, right = inside.nonzero(as_tuple=True)
    return _Footprints(
        pixel=(image[which] * size + rows[which, down, 0]) * size + columns[which, 0, right],
        number=slot[which] + 1,
        depth=1 - level[which, down, right],
        row=row[which, down, 0],
        column=column[which, 0, right],
    )


def _level(row: Tensor, column: Tensor, angle: Tensor, stretch: Tensor, waves: Tensor) -> Tensor:
    """Distance from the center relative to the outline in that direction: below 1 is inside."""
    sine, cosine, stretch = (value[:, None, None] for value in (angle.sin(), angle.cos(), stretch))
    along = (column * cosine + row * sine) / stretch
    across = (row * cosine - column * sine) * stretch
    distance = (along.square() + across.square()).sqrt().clamp(min=1e-3)
    first = (along / distance, across / distance)
    outline = torch.ones_like(distance)
    cosines, sines = first
    for wave in range(2, max(WAVES) + 1):
        cosines, sines = cosines * first[0] - sines * first[1], sines * first[0] + cosines * first[1]
        if wave in WAVES:
            amplitude = waves[:, WAVES.index(wave), :, None, None]
            outline += amplitude[:, 0] * cosines + amplitude[:, 1] * sines
    return distance / outline.clamp(0.6, LARGEST_OUTLINE)


def instances(drawn: NucleusMap, places: int) -> Tensor:
    """Instance masks (B, H, W): 0 background, the visible nuclei numbered 1, 2, … without holes."""
    flat = drawn.place.flatten(1)
    visible = torch.zeros(len(flat), places + 1, dtype=torch.int64).scatter_(1, flat, 1)
    visible[:, 0] = 0
    numbers = visible.cumsum(1) * visible
    return numbers.gather(1, flat).view_as(drawn.place)


def per_pixel(values: Tensor, drawn: NucleusMap) -> Tensor:
    """A nucleus parameter (B, K) at each pixel (B, H, W), 0 outside nuclei."""
    table = torch.cat([torch.zeros(len(values), 1), values.float()], 1)
    return table.gather(1, drawn.place.flatten(1)).view_as(drawn.depth)


def chromatin(nuclei: Nuclei, drawn: NucleusMap, scale: float, generator: torch.Generator) -> Tensor:
    """Hematoxylin (B, H, W) of the nuclei: clumped, and if vesicular pale inside and dark at the rim."""
    batch, size = drawn.depth.shape[0], drawn.depth.shape[-1]
    paleness = per_pixel(nuclei.paleness, drawn)
    clumps = smooth_noise(batch, size, 0.9 * scale, generator)
    hollow = (drawn.depth / 0.45).clamp(0, 1)
    side = uniform(nuclei.radius.shape, -0.3, 0.3, generator)
    nucleolus = torch.exp(-((drawn.row - per_pixel(side, drawn)) ** 2 + drawn.column**2) / 0.05)
    profile = 1 - 0.55 * paleness * hollow + 0.5 * paleness * nucleolus
    profile = profile * (1 + (0.10 + 0.20 * paleness) * clumps)
    solid = per_pixel(nuclei.darkness, drawn) * profile.clamp(min=0.15)
    defocused = per_pixel(nuclei.defocused, drawn)
    return blurred(solid * (1 - defocused), 0.35) + blurred(solid * defocused, DEFOCUS * scale)


def surroundings(
    population: Population, nuclei: Nuclei, gaps: Tensor, scale: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Hematoxylin haze and eosin (B, H, W) of cells and fibres; `scale` is in pixels per 0.5 µm."""
    batch, size = gaps.shape[0], gaps.shape[-1]
    cells = draw(replace(nuclei, radius=CELL_RADIUS * nuclei.radius, waves=0.5 * nuclei.waves), size)
    body = blurred((cells.depth / 0.12).clamp(0, 1), 0.4) * (1 - 0.5 * blurred(_borders(cells.place), 0.5 * scale))
    cloudy = (1 + 0.25 * smooth_noise(batch, size, 1.1 * scale, generator)).clamp(min=0)
    tint = per_pixel(normal(nuclei.radius.shape, 1, 0.12, generator), cells)
    cytoplasm = population.cytoplasm[:, None, None] * tint * cloudy
    strands = 0.7 * fibre_noise(batch, size, 0.8 * scale, 4.5 * scale, generator)
    strands = strands + 0.7 * smooth_noise(batch, size, 4 * scale, generator)
    stroma = population.fibres[:, None, None] * (1 + 0.38 * strands).clamp(min=0.05)
    eosin = body * cytoplasm + (1 - body) * stroma
    uneven = (1 + 0.5 * smooth_noise(batch, size, 3 * scale, generator)).clamp(min=0)
    haze = population.basophilia[:, None, None] * (0.8 * body + 0.2) * uneven * cloudy
    return haze * (1 - gaps), eosin * (1 - gaps)


def _borders(place: Tensor) -> Tensor:
    """1 where a pixel's cell differs from the next pixel's, down or to the right."""
    different = torch.zeros(place.shape)
    different[:, 1:] += (place[:, 1:] != place[:, :-1]).float()
    different[:, :, 1:] += (place[:, :, 1:] != place[:, :, :-1]).float()
    return different.clamp(max=1)
