"""The synthetic prostate MRI as volumes: the same patients and scanners as in `prostate`, slices as thick as a site's.

Slices are painted at finer levels than a site scans and averaged over its slice thickness, so that thick slices blur
what lies between them, as real ones do. The numbers of slices and the distances between them differ from site to site;
volumes of one spacing are resampled from that, as those of a folder are.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from harmofl.data.images import LabelledImages
from harmofl.data.phantoms import pelvis, prostate, tissue

COVERAGE = 60.0
"""Millimetres from the lowest slice to the highest; a prostate takes about 42 of them."""

# The order of magnitude of what is reported for the public set: Siemens at I2CVB scans nearly isotropic volumes.
THICKNESS: Mapping[str, float] = {"BIDMC": 2.2, "HK": 3.6, "I2CVB": 1.25, "ISBI": 3.6, "ISBI_1.5": 4.0, "UCL": 3.3}
"""Millimetres between the slices of each site, which are as thick as that."""

PAINTED = 2.0
"""Millimetres between painted levels, at most; thicker slices average several."""

Spacing = tuple[float, float, float]
"""Millimetres between slices, rows and columns."""


def own_spacing(site: str, size: int, shift: float) -> Spacing:
    """How a site scans, `size` pixels across; moved away from the mean over sites as far as the shift says.

    >>> own_spacing("HK", 48, shift=1.0)
    (3.53, 3.44, 3.44)
    """
    pixel = round(10 * prostate.site_appearance(site, shift).field_of_view / size, 2)
    return round(COVERAGE / _num_slices(site, shift), 2), pixel, pixel


def _num_slices(site: str, shift: float) -> int:
    mean = sum(THICKNESS.values()) / len(THICKNESS)
    thickness = min(6.0, max(1.0, mean + shift * (THICKNESS[site] - mean)))
    return round(COVERAGE / thickness)


@tissue.one_thread()
def make_volumes(
    site: str, cases: int, size: int, shift: float, seed: int, spacing: Sequence[float] | None = None
) -> LabelledImages:
    """The volumes of one site's cases, (cases, 1, slices, rows, columns); the same arguments give the same bits.

    Args:
        site: One of `prostate.SITES`.
        cases: How many patients.
        size: Pixels across, if the volumes keep the site's own spacing.
        shift: How far the site is from the mean over sites.
        seed: Of patients and noise.
        spacing: Millimetres between slices, rows and columns to resample to; the site's own if None.
    """
    appearance = prostate.site_appearance(site, shift)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{site}/{seed}".encode()))
    patients = prostate.draw_patients(appearance, cases, generator)
    if spacing is not None:
        size = max(1, round(10 * appearance.field_of_view / spacing[1]))
        patients = _with_field_of_view(patients, size * spacing[1] / 10)
    slices = _num_slices(site, shift)
    thickness = max(1, round(COVERAGE / slices / PAINTED))
    levels = pelvis.spread_levels(slices * thickness)
    at_once = max(1, prostate.PIXELS_AT_ONCE // (len(levels) * size * size))
    parts = [
        prostate.scan(patients.cases(start, start + at_once), levels, size, generator, thickness)
        for start in range(0, cases, at_once)
    ]
    images, masks = (torch.cat(part) for part in zip(*parts, strict=True))
    shape = (slices, size, size) if spacing is None else _resampled_shape(spacing, size)
    steps = _own_steps(patients, slices, size) if spacing is None else torch.tensor([list(spacing)] * cases)
    return LabelledImages(*_resample(images, masks, shape), torch.arange(cases), steps.double())


def _own_steps(patients: prostate.Patients, slices: int, size: int) -> Tensor:
    """Millimetres between each patient's slices, rows and columns, (cases, 3)."""
    pixels = 10 * patients.appearance["field_of_view"].flatten() / size
    return torch.stack([torch.full_like(pixels, COVERAGE / slices), pixels, pixels], dim=1)


def _with_field_of_view(patients: prostate.Patients, centimetres: float) -> prostate.Patients:
    """Give every patient the same field of view: only pixels of one size, and as many of them, make one array."""
    views = torch.full_like(patients.appearance["field_of_view"], centimetres)
    return replace(patients, appearance={**patients.appearance, "field_of_view": views})


def _resampled_shape(spacing: Sequence[float], size: int) -> tuple[int, int, int]:
    return max(1, round(COVERAGE / spacing[0])), size, max(1, round(size * spacing[1] / spacing[2]))


def _resample(images: Tensor, masks: Tensor, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Interpolate images between voxels; a mask takes the nearest value."""
    if images.shape[1:] == shape:
        return images[:, None], masks.long()
    resampled = F.interpolate(images[:, None], shape, mode="trilinear")
    nearest = F.interpolate(masks[:, None].float(), shape, mode="nearest-exact")
    return resampled, nearest[:, 0].long()
