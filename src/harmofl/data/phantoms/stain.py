"""How a hospital's stain and scanner turn dye concentrations into a picture.

Beer–Lambert: intensity = background · exp(−(hematoxylin · its vector + eosin · its vector)), then the
scanner's blur, contrast curve and noise. A site's look is an `Appearance`; `shifted_appearance` moves it
towards or away from the mean over sites.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

# Natural variation within a site, the same at all sites: deviations of the logarithm of a stain's strength.
PATIENT_STAIN_SPREAD = 0.10
IMAGE_STAIN_SPREAD = 0.06
# Limits that keep an exaggerated appearance (shift > 1) physical.
STRENGTH_LIMITS = (0.2, 3.5)
BACKGROUND_LIMITS = (0.6, 1.0)
GAMMA_LIMITS = (0.5, 2.0)
BLUR_LIMITS = (0.2, 2.0)
NOISE_LIMITS = (0.001, 0.06)
SMALLEST_ABSORPTION = 0.02

RGB = tuple[float, float, float]


@dataclass(frozen=True)
class Appearance:
    """Stain and scanner of one site.

    hematoxylin, eosin:  optical density of each dye in red, green, blue (unit vectors)
    *_strength:          optical density of a dark nucleus, or of dense collagen, along its dye's vector
    background:          red, green, blue of empty glass
    gamma:               exponent of the scanner's contrast curve (1: none)
    blur, noise:         standard deviations, in pixels and in intensity
    """

    hematoxylin: RGB
    eosin: RGB
    hematoxylin_strength: float
    eosin_strength: float
    background: RGB
    gamma: float
    blur: float
    noise: float


def site_generator(sites: Mapping[str, object], site: str, seed: int) -> torch.Generator:
    """Random numbers of one site, the same on every machine."""
    check_site(sites, site)
    # torch's generator on the CPU keeps only 32 bits of a seed, so both go through one hash.
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{site}".encode()))


def check_site(sites: Mapping[str, object], site: str) -> None:
    """Refuse a site that has no appearance, naming those that do."""
    if site not in sites:
        close = get_close_matches(site, sites, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown site {site!r}: the sites are {', '.join(sites)}.{hint}")


def shifted_appearance(sites: Mapping[str, Appearance], site: str, shift: float) -> Appearance:
    """Mean over sites + shift · (site − mean): 0 makes all sites look alike, 1 is the site as measured."""
    check_site(sites, site)
    mean = torch.stack([_coordinates(appearance) for appearance in sites.values()]).mean(0)
    return _appearance(mean + shift * (_coordinates(sites[site]) - mean))


def _coordinates(appearance: Appearance) -> Tensor:
    # Scales go in as logarithms: half and double are then equally far from one.
    scales = (
        appearance.hematoxylin_strength,
        appearance.eosin_strength,
        appearance.gamma,
        appearance.blur,
        appearance.noise,
    )
    colours = (*appearance.hematoxylin, *appearance.eosin, *appearance.background)
    return torch.tensor([*colours, *map(math.log, scales)], dtype=torch.float64)


def _appearance(coordinates: Tensor) -> Appearance:
    hematoxylin, eosin, background, scales = torch.split(coordinates, [3, 3, 3, 5])
    strengths, gamma, blur, noise = torch.split(scales.exp(), [2, 1, 1, 1])
    strengths = strengths.clamp(*STRENGTH_LIMITS)
    return Appearance(
        hematoxylin=_rgb(_unit(hematoxylin)),
        eosin=_rgb(_unit(eosin)),
        hematoxylin_strength=float(strengths[0]),
        eosin_strength=float(strengths[1]),
        background=_rgb(background.clamp(*BACKGROUND_LIMITS)),
        gamma=float(gamma.clamp(*GAMMA_LIMITS)),
        blur=float(blur.clamp(*BLUR_LIMITS)),
        noise=float(noise.clamp(*NOISE_LIMITS)),
    )


def _unit(vector: Tensor) -> Tensor:
    vector = vector.clamp(min=SMALLEST_ABSORPTION)
    return torch.nn.functional.normalize(vector, dim=0)


def _rgb(values: Tensor) -> RGB:
    red, green, blue = values.tolist()
    return red, green, blue


def stain_variation(groups: Tensor, generator: torch.Generator) -> Tensor:
    """Factors (N, 2) of the two stains' strengths: one draw per patient times one per image."""
    patients = int(groups.max()) + 1
    per_patient = PATIENT_STAIN_SPREAD * torch.randn(patients, 2, generator=generator)
    per_image = IMAGE_STAIN_SPREAD * torch.randn(len(groups), 2, generator=generator)
    return (per_patient[groups] + per_image).exp()


def photograph(
    hematoxylin: Tensor, eosin: Tensor, appearance: Appearance, variation: Tensor, generator: torch.Generator
) -> Tensor:
    """Picture (B, 3, H, W) of dye concentrations (B, H, W), where 1 is a dark nucleus or dense collagen."""
    strengths = torch.tensor([appearance.hematoxylin_strength, appearance.eosin_strength]) * variation
    vectors = torch.tensor([appearance.hematoxylin, appearance.eosin])
    dyes = torch.stack([hematoxylin, eosin], 1) * strengths[:, :, None, None]
    density = torch.einsum("bdhw,dc->bchw", dyes, vectors)
    background = torch.tensor(appearance.background)[:, None, None]
    light = background * torch.exp(-density)
    light = blurred(light, appearance.blur).clamp(0, 1) ** appearance.gamma
    light = light + appearance.noise * torch.randn(light.shape, generator=generator)
    return light.clamp(0, 1)


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of the last two dimensions, the weights renormalized at the border."""
    # As a product with a square matrix from both sides: at these sizes faster than convolution.
    places = torch.arange(images.shape[-1], dtype=images.dtype)
    weights = torch.exp(-0.5 * ((places[:, None] - places) / sigma) ** 2)
    weights = weights / weights.sum(1, keepdim=True)
    return weights @ images @ weights.T
