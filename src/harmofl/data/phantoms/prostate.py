"""Synthetic T2-weighted prostate MRI of six hospitals that scan differently.

Input: three neighbouring slices as channels; target: the prostate in the middle one. Every hospital's
patients come from the same distribution (`pelvis`), only the scanner differs. The hospitals are named after
the sites of the public multi-site prostate set (Liu, Dou, Heng: "Shape-aware Meta-learning for Generalizing
Prostate MRI Segmentation to Unseen Domains", MICCAI 2020) and imitate the coils and field strengths reported
for them. There is no patient data in here.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harmofl.data.images import LabelledImages
from harmofl.data.phantoms import pelvis, tissue
from harmofl.data.phantoms.anatomy import Anatomy, draw_anatomy

CASE_VARIATION = 0.10  # relative change of every appearance number from case to case, the same at all sites
TISSUE_VARIATION = 0.14  # relative change of every tissue's signal from case to case
CLIP_QUANTILE = 0.99

PIXELS_AT_ONCE = 2**18  # bounds memory, and keeps the painting inside the processor's cache


@dataclass(frozen=True)
class Appearance:
    """How a scanner renders the same anatomy."""

    field_of_view: float  # cm, the edge of the image
    echo_time: float  # ms; longer leaves only fluid bright
    repetition_time: float  # ms; shorter darkens fluid and so levels the zones
    fat: float  # signal of fat relative to its proton density
    gamma: float  # contrast curve; below 1 lifts the dark tissues
    black_level: float  # brightness of air
    bias: float  # strength of the smooth multiplicative field
    flare: float  # gain next to an endorectal coil, which fades away from the rectum
    flare_reach: float  # cm over which it fades
    blur: float  # mm, standard deviation
    noise: float  # standard deviation relative to the brightest tissue


# Field strength, maker and coil are as reported for the public set. The numbers are ours: an endorectal coil
# floods the back of the gland with signal and goes with a small field of view, 1.5 T is noisier and blurrier
# than 3 T. Contrast (echo and repetition time, fat, gamma) is spread until the order of the tissues changes.
APPEARANCES: Mapping[str, Appearance] = {
    # 3 T GE, endorectal coil, the finest pixels of all.
    "BIDMC": Appearance(13.5, 120, 5000, 0.75, 0.65, 0.10, 0.25, 5.0, 2.4, 0.5, 0.015),
    # 1.5 T Siemens, endorectal coil.
    "HK": Appearance(16.5, 95, 3500, 1.00, 0.85, 0.00, 0.25, 2.5, 3.5, 1.0, 0.035),
    # 3 T Siemens, no endorectal coil, the widest field.
    "I2CVB": Appearance(20.0, 140, 6000, 0.40, 1.00, 0.00, 0.35, 0.0, 3.0, 0.9, 0.025),
    # 3 T Siemens, surface coil (Radboud).
    "ISBI": Appearance(17.0, 100, 5000, 0.90, 0.95, 0.05, 0.45, 0.0, 3.0, 0.6, 0.020),
    # 1.5 T Philips, endorectal coil (Boston Medical Center).
    "ISBI_1.5": Appearance(14.5, 70, 2000, 1.20, 0.80, 0.10, 0.25, 3.5, 2.8, 1.3, 0.040),
    # 1.5 T and 3 T Siemens, no endorectal coil.
    "UCL": Appearance(18.0, 85, 2800, 1.30, 1.15, 0.00, 0.30, 0.0, 3.0, 1.4, 0.035),
}
SITES: tuple[str, ...] = tuple(APPEARANCES)
# What an exaggerated shift may not exceed.
LOWEST = Appearance(12.0, 35, 1000, 0.15, 0.40, 0.0, 0.0, 0.0, 2.0, 0.3, 0.005)
HIGHEST = Appearance(27.0, 180, 8000, 2.20, 2.20, 0.3, 0.9, 10.0, 5.0, 2.5, 0.090)

# Relaxation times T1 and T2 in ms and proton density; the order of magnitude of published values.
RELAXATION: Mapping[str, tuple[float, float, float]] = {
    "muscle": (1200, 36, 0.85),
    "cortex": (400, 10, 0.15),
    "fluid": (3200, 600, 1.00),
    "wall": (1300, 62, 0.85),
    "stool": (900, 70, 0.60),
    "peripheral": (1650, 150, 0.95),
    "transition": (1400, 82, 0.90),
    "lesion": (1300, 62, 0.88),
    "vein": (1700, 170, 0.90),
}
FAT_SHARE: Mapping[str, float] = {"fat": 0.62, "marrow": 0.42}  # tissues whose signal follows the fat's


def site_appearance(site: str, shift: float) -> Appearance:
    """The site's appearance, moved away from the mean over sites `shift` times as far as it is."""
    if site not in APPEARANCES:
        raise ValueError(f"unknown prostate site {site!r}; known: {', '.join(SITES)}")
    rows = torch.tensor([astuple(row) for row in APPEARANCES.values()], dtype=torch.float64)
    mean = rows.mean(0)
    moved = mean + shift * (rows[SITES.index(site)] - mean)
    bounds = (torch.tensor(astuple(edge), dtype=torch.float64) for edge in (LOWEST, HIGHEST))
    return Appearance(*moved.clamp(*bounds).tolist())


@tissue.one_thread()
def make_site(site: str, cases: int, slices: int, size: int, shift: float, seed: int) -> LabelledImages:
    """Slices of one site's cases, in order; the same arguments give the same bits."""
    appearance = site_appearance(site, shift)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{site}/{seed}".encode()))
    patients = draw_patients(appearance, cases, generator)
    at_once = max(1, PIXELS_AT_ONCE // (slices * size * size))
    starts = range(0, cases, at_once)
    levels = pelvis.spread_levels(slices)
    parts = [scan(patients.cases(start, start + at_once), levels, size, generator) for start in starts]
    volumes = torch.cat([volume for volume, _ in parts])
    masks = torch.cat([mask for _, mask in parts])
    images = _with_neighbours(volumes).flatten(0, 1)
    return LabelledImages(images, masks.flatten(0, 1).long(), torch.arange(cases).repeat_interleave(slices))


@dataclass(frozen=True)
class Patients:
    """All that is random but the noise, drawn at once so that it depends on neither image size nor chunks."""

    anatomy: Anatomy
    appearance: Mapping[str, Tensor]  # each (cases, 1, 1, 1)
    tissues: Mapping[str, Tensor]  # factor on each tissue's signal
    bias: Tensor  # (cases, 5, 1, 1), weights of the bias field's terms
    blur: float  # the same for all, which spares a kernel per case

    def cases(self, start: int, stop: int) -> Patients:
        """Some of them."""
        appearance = {name: values[start:stop] for name, values in self.appearance.items()}
        tissues = {name: values[start:stop] for name, values in self.tissues.items()}
        return Patients(self.anatomy.cases(start, stop), appearance, tissues, self.bias[start:stop], self.blur)


def draw_patients(appearance: Appearance, cases: int, generator: torch.Generator) -> Patients:
    """Random patients, and what of a scanner differs from one to the next."""

    def around_one(spread: float) -> Tensor:
        return 1 + spread * (2 * torch.rand((cases, 1, 1, 1), generator=generator) - 1)

    return Patients(
        anatomy=draw_anatomy(cases, generator),
        appearance={name: value * around_one(CASE_VARIATION) for name, value in vars(appearance).items()},
        tissues={name: around_one(TISSUE_VARIATION) for name in pelvis.TISSUES},
        bias=torch.randn((cases, 5, 1, 1), generator=generator),
        blur=appearance.blur / 10 / appearance.field_of_view,
    )


def _with_neighbours(volumes: Tensor) -> Tensor:
    """Add channels, (cases, slices, 3, H, W): the lower slice, the slice itself, the upper slice."""
    lower = torch.cat([volumes[:, :1], volumes[:, :-1]], dim=1)
    upper = torch.cat([volumes[:, 1:], volumes[:, -1:]], dim=1)
    return torch.stack([lower, volumes, upper], dim=2)


def scan(
    patients: Patients, levels: Tensor, size: int, generator: torch.Generator, thickness: int = 1
) -> tuple[Tensor, Tensor]:
    """Volumes and masks: paint with this scanner's contrast, then add what coil and receiver do.

    `thickness`: so many neighbouring levels make one slice, whose signal is their mean.
    """
    look = patients.appearance
    view = pelvis.View.of(patients.anatomy, look["field_of_view"], size)
    painted = pelvis.paint_slices(patients.anatomy, view, levels, _signals(patients))
    flare = 1 + look["flare"] * torch.exp(-painted.coil_distance / look["flare_reach"])
    signal = _thick(painted.signal * flare, thickness)
    received = signal * _bias_field(look["bias"], patients.bias, size)
    sharp = _scale(_blur(received, patients.blur * size))
    volume = _scale(_add_noise(sharp, look["noise"], generator))
    mask = _thick(painted.mask.float(), thickness) >= 0.5 if thickness > 1 else painted.mask
    return look["black_level"] + (1 - look["black_level"]) * volume ** look["gamma"], mask


def _thick(slices: Tensor, thickness: int) -> Tensor:
    """The means of so many neighbouring slices each."""
    return slices if thickness == 1 else slices.view(len(slices), -1, thickness, *slices.shape[2:]).mean(2)


def _signals(patients: Patients) -> dict[str, Tensor]:
    """Each tissue's signal in a spin-echo sequence."""
    look = patients.appearance
    signals = {name: share * look["fat"] for name, share in FAT_SHARE.items()}
    for name, (t1, t2, density) in RELAXATION.items():
        recovered = 1 - torch.exp(-look["repetition_time"] / t1)
        signals[name] = density * recovered * torch.exp(-look["echo_time"] / t2)
    return {name: value * patients.tissues[name] for name, value in signals.items()}


def _bias_field(strength: Tensor, weights: Tensor, size: int) -> Tensor:
    """A smooth gain per case, a random quadratic of the place in the image."""
    place = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(place, place, indexing="ij")
    terms = torch.stack([x, y, x * y, x * x - 1 / 3, y * y - 1 / 3])
    return torch.exp(strength * (weights * terms).sum(1, keepdim=True).clamp(-2, 2))


def _blur(volume: Tensor, deviation: float) -> Tensor:
    """Gaussian blur within each slice; `deviation` is in pixels."""
    reach = max(1, round(3 * deviation))
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (offsets / deviation) ** 2)
    kernel = kernel / kernel.sum()
    flat = F.pad(volume.flatten(0, 1).unsqueeze(1), [reach] * 4, mode="replicate")
    return F.conv2d(F.conv2d(flat, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1)).view(volume.shape)


def _add_noise(volume: Tensor, deviation: Tensor, generator: torch.Generator) -> Tensor:
    """Rician noise: the magnitude of a signal with Gaussian noise in both channels."""
    real, imaginary = torch.randn((2, *volume.shape), generator=generator)
    return torch.hypot(volume + deviation * real, deviation * imaginary)


def _scale(volume: Tensor) -> Tensor:
    """Clip each case's volume at its 99th percentile, which becomes 1."""
    flat = volume.flatten(1)
    rank = max(1, round(CLIP_QUANTILE * flat.shape[1]))
    top = flat.kthvalue(rank, dim=1).values.clamp(min=1e-6)
    return (volume / top.view(-1, 1, 1, 1)).clamp(0, 1)
