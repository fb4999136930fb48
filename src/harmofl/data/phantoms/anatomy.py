"""The random draws that make the cases of a synthetic pelvis: numbers, and textures on a lattice.

Lengths are in centimetres; see `pelvis` for the axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# What differs from case to case, each drawn uniformly between two bounds. Wider ranges make the task harder.
RANGES: Mapping[str, tuple[float, float]] = {
    # Where the patient lies, and how large.
    "offset_x": (-1.0, 1.0),
    "offset_y": (-1.6, 1.6),
    "tilt": (-0.10, 0.10),
    "body_scale": (0.93, 1.07),
    "fat_thickness": (1.2, 3.0),
    # The prostate: half-axes, where along the levels it ends, how it is moulded by its neighbours.
    "gland_width": (2.2, 3.3),
    "gland_height": (1.55, 2.5),
    "gland_apex": (-0.84, -0.56),
    "gland_base": (0.54, 0.84),
    "gland_dent": (0.0, 0.24),
    "gland_x": (-0.25, 0.25),
    "gland_taper": (0.0, 0.25),
    # The zones: a transition zone enlarged by hyperplasia compresses the peripheral zone to a rim.
    "transition_size": (0.45, 0.86),
    "nodularity": (0.15, 0.65),
    "capsule": (0.10, 0.60),
    "lesion_present": (0.0, 1.0),
    "lesion_angle": (0.25, 1.15),
    "lesion_side": (-1.0, 1.0),
    "lesion_level": (-0.4, 0.4),
    "lesion_size": (0.45, 0.95),
    "lesion_depth": (0.35, 0.75),
    # The neighbours.
    "bladder_fill": (0.55, 1.15),
    "rectum_size": (1.0, 2.0),
    "rectum_x": (-0.6, 0.6),
    "rectum_gas": (0.0, 1.0),
    "rectum_stool": (0.1, 1.0),
    "vesicle_size": (0.7, 1.2),
    "vein_density": (-0.2, 0.9),
    "levator_gap": (0.15, 0.6),
    "obturator_x": (5.0, 5.8),
}

_EXTENT = 18.0  # cm from the origin to the edge of the texture lattice
_LATTICE_LEVELS = 6


@dataclass(frozen=True)
class Anatomy:
    """The random draws that make the cases: numbers per case, and random textures on a lattice."""

    numbers: Mapping[str, Tensor]  # each (cases, 1, 1, 1)
    coarse: Tensor  # (cases, 3, levels, rows, columns): displacement in x and y, shading
    fine: Tensor  # (cases, 2, levels, rows, columns): two independent grains

    def __getitem__(self, name: str) -> Tensor:
        return self.numbers[name]

    def cases(self, start: int, stop: int) -> Anatomy:
        """The anatomy of some of the cases."""
        numbers = {name: values[start:stop] for name, values in self.numbers.items()}
        return Anatomy(numbers, self.coarse[start:stop], self.fine[start:stop])


def draw_anatomy(cases: int, generator: torch.Generator) -> Anatomy:
    """Random anatomy of some cases, from the same distribution wherever it is called."""
    shares = torch.rand((cases, len(RANGES)), generator=generator)
    numbers = {
        name: (low + (high - low) * shares[:, column]).view(-1, 1, 1, 1)
        for column, (name, (low, high)) in enumerate(RANGES.items())
    }
    return Anatomy(numbers, _lattice(cases, 3, 12, generator), _lattice(cases, 2, 72, generator))


def _lattice(cases: int, channels: int, cells: int, generator: torch.Generator) -> Tensor:
    """Smooth random values of unit variance; bicubic refinement hides the facets of the linear sampling."""
    values = torch.randn((cases * channels, _LATTICE_LEVELS, cells, cells), generator=generator)
    smooth = F.interpolate(values, scale_factor=2, mode="bicubic", align_corners=True)
    smooth = smooth / smooth.std()
    return smooth.view(cases, channels, _LATTICE_LEVELS, 2 * cells, 2 * cells)


def sample_lattice(lattice: Tensor, x: Tensor, y: Tensor, level: Tensor) -> list[Tensor]:
    """The lattice's channels at the given places, each (cases, slices, H, W)."""
    shape = (len(x), level.shape[1], *x.shape[2:])
    places = torch.stack([part.expand(shape) for part in (x / _EXTENT, y / _EXTENT, level)], dim=-1)
    sampled = F.grid_sample(lattice, places, mode="bilinear", padding_mode="border", align_corners=True)
    return list(sampled.unbind(1))
