"""Axial slices of a synthetic male pelvis around the prostate, painted tissue by tissue.

Lengths are in centimetres. The prostate's usual centre is the origin, x points to the patient's left, y to
the back, and the level runs from -1 (lowest slice, below the apex) to 1 (highest, above the base). Slices are
painted like a picture, from the body's outline inwards, all slices of all cases at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harmofl.data.phantoms.anatomy import Anatomy, sample_lattice

LESION_RATE = 0.5  # share of cases with a dark lesion in the peripheral zone
WARP = 0.38  # cm by which smooth random displacement moves every outline
ROUGHNESS = 0.05  # the same at the scale of millimetres
TEXTURE = 0.16  # relative signal variation inside a tissue

# Peripheral and transition are the prostate's zones; vein, wall and stool are their look-alikes.
TISSUES = (
    *("fat", "muscle", "marrow", "cortex", "fluid", "wall", "stool", "vein"),
    *("peripheral", "transition", "lesion"),
)


@dataclass(frozen=True)
class View:
    """Which part of the pelvis a slice shows, as coordinates of its pixels in centimetres."""

    x: Tensor  # (cases, 1, H, W)
    y: Tensor
    pixel: Tensor  # (cases, 1, 1, 1), the size of one

    @classmethod
    def of(cls, anatomy: Anatomy, field_of_view: Tensor, size: int) -> View:
        """The view of each case: a square around the prostate, shifted and tilted as the patient lies."""
        steps = (torch.arange(size) + 0.5) / size - 0.5
        across, down = steps.view(1, 1, 1, -1) * field_of_view, steps.view(1, 1, -1, 1) * field_of_view
        cosine, sine = torch.cos(anatomy["tilt"]), torch.sin(anatomy["tilt"])
        x = cosine * across - sine * down + anatomy["offset_x"]
        y = sine * across + cosine * down + anatomy["offset_y"]
        return cls(x, y, field_of_view / size)


def _length(x: Tensor, y: Tensor) -> Tensor:
    return (x * x + y * y).sqrt()  # several times faster than torch.hypot


def _ellipse(x: Tensor, y: Tensor, half_x: Tensor | float, half_y: Tensor | float) -> Tensor:
    """Approximate signed distance to an ellipse, negative inside."""
    half_x, half_y = torch.as_tensor(half_x), torch.as_tensor(half_y)
    return (_length(x / half_x, y / half_y) - 1) * torch.minimum(half_x, half_y)


def _turn(x: Tensor, y: Tensor, angle: float) -> tuple[Tensor, Tensor]:
    cosine, sine = math.cos(angle), math.sin(angle)
    return cosine * x + sine * y, cosine * y - sine * x


def _ramp(values: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    return ((values - low) / (high - low)).clamp(0, 1)


class _Painter:
    """Paints one batch of slices; later strokes cover earlier ones."""

    def __init__(self, anatomy: Anatomy, view: View, levels: Tensor, signals: Mapping[str, Tensor]) -> None:
        self.anatomy, self.signals, self.pixel = anatomy, signals, view.pixel
        self.level = levels.view(1, -1, 1, 1)
        move_x, move_y, self.shading = sample_lattice(anatomy.coarse, view.x, view.y, self.level)
        self.grain, self.speckle = sample_lattice(anatomy.fine, view.x, view.y, self.level)
        self.x = view.x + WARP * move_x + ROUGHNESS * self.grain
        self.y = view.y + WARP * move_y + ROUGHNESS * self.speckle
        self.side = self.x.abs()  # paired structures are drawn once
        self.image = torch.zeros_like(self.x)
        self._place_gland()

    def _place_gland(self) -> None:
        anatomy = self.anatomy
        apex, base = anatomy["gland_apex"], anatomy["gland_base"]
        self.height_in_gland = (self.level - (apex + base) / 2) / ((base - apex) / 2)  # -1 apex, 1 base
        pointed, blunt = (-self.height_in_gland).clamp(0, 1) ** 2.4, self.height_in_gland.clamp(0, 1) ** 4
        profile = (1 - pointed - blunt).clamp(min=0.01).sqrt()
        profile = profile * (1 + anatomy["gland_taper"] * self.height_in_gland.clamp(-1, 1))
        self.gland_width = anatomy["gland_width"] * profile
        self.gland_height = anatomy["gland_height"] * profile
        # The apex lies further forward than the base, which leans back over the rectum.
        self.gland_x = self.x - anatomy["gland_x"]
        self.gland_y = self.y - 0.25 * self.height_in_gland
        across, down = self.gland_x / self.gland_width, self.gland_y / self.gland_height
        # The rectum dents the back, which gives the chestnut shape.
        dented = down + anatomy["gland_dent"] * (1 - 2 * across.abs()).clamp(min=-1)
        self.gland_outline = (_length(across, dented) - 1) * self.gland_height
        present = self.height_in_gland.abs() < 1
        self.mask = (self.gland_outline < 0) & present
        self.gland_present = present.float()
        self.above = _ramp(self.level, base - 0.35, base + 0.15)
        self.below = _ramp(-self.level, -apex - 0.15, -apex + 0.1)

    def paint(self, distance: Tensor, value: Tensor, strength: Tensor | float = 1.0) -> None:
        """Cover the inside of an outline, its edge softened over one pixel."""
        coverage = (0.5 - distance / self.pixel).clamp_(0, 1)
        self.image = torch.lerp(self.image, value, coverage * strength)

    def tissue(self, name: str, texture: float = 1.0) -> Tensor:
        """A tissue's signal with a little shading."""
        return self.signals[name] * (1 + TEXTURE * texture * self.shading)

    def grainy(self, name: str, texture: float = 1.0) -> Tensor:
        """A tissue's signal with a visible grain."""
        return self.signals[name] * (1 + TEXTURE * texture * self.grain)

    def bone(self, distance: Tensor, strength: Tensor | float = 1.0, cortex: float = 0.2) -> None:
        """Marrow inside a dark shell."""
        self.paint(distance, self.signals["cortex"], strength)
        self.paint(distance + cortex, self.grainy("marrow"), strength)

    def body(self) -> None:
        scale, fat = self.anatomy["body_scale"], self.anatomy["fat_thickness"]
        outline = _ellipse(self.x, self.y - 0.5, 17.5 * scale, 10.3 * scale)
        # Septa run through the fat, where the shading crosses zero.
        septa = 1 - 0.22 * torch.exp(-((self.shading + 0.15 * self.grain) ** 2) / 0.015)
        self.paint(outline, self.tissue("fat") * septa)
        cleft = _ellipse(self.x, self.y - 11.4 * scale, 0.5, 2.6)
        self.paint(cleft, torch.zeros(()))
        # The abdominal wall in front and the thigh muscles beside it.
        wall = _ellipse(self.side - 2.6, self.y + 9.3 * scale - fat, 2.7, 0.65)
        self.paint(wall, self.grainy("muscle"), 0.9)
        self.paint(_ellipse(self.side - 7.6, self.y + 6.0, 2.9, 2.2), self.streaked_muscle())
        turned = _turn(self.side - 7.4, self.y - 7.4, 0.5)
        self.paint(_ellipse(*turned, 6.2, 2.5), self.streaked_muscle())

    def streaked_muscle(self) -> Tensor:
        """Muscle with streaks of fat between its bundles."""
        streaks = 0.3 * torch.exp(-((self.shading + 0.2 * self.grain) ** 2) / 0.02) + 0.06 * self.speckle
        return torch.lerp(self.tissue("muscle", 1.4), self.signals["fat"], streaks.clamp(min=0))

    def bones(self) -> None:
        high, low = _ramp(self.level, -0.5, 0.2), _ramp(-self.level, -0.5, 0.1)
        self.bone(_ellipse(self.side - self.anatomy["obturator_x"] - 4.8, self.y + 1.6, 2.5, 2.5), high)
        turned = _turn(self.side - self.anatomy["obturator_x"] - 1.9, self.y + 0.2, -0.12)
        self.bone(_ellipse(*turned, 1.15 - 0.25 * self.level, 4.0))
        # The pubic bodies meet in front of the prostate in the lower slices.
        turned = _turn(self.side - 2.1, self.y + 5.3, -0.45)
        self.bone(_ellipse(*turned, 2.2, 0.95 + 0.2 * low), low)
        self.paint(_ellipse(self.x, self.y + 5.0, 0.22, 1.2), self.signals["muscle"], low)
        coccyx_width = 1.1 + 0.7 * self.level.clamp(min=0)
        self.bone(_ellipse(self.x, self.y - 8.2 + 0.8 * self.level, coccyx_width, 0.75))

    def muscles(self) -> None:
        # The obturator internus lines the pelvic wall and bends inwards at the back.
        bent = (
            self.side - self.anatomy["obturator_x"] + 0.045 * (self.y - 0.2) ** 2 * torch.where(self.y > 0.2, 1.0, 0.5)
        )
        self.paint(_ellipse(bent, self.y - 0.3, 1.1, 3.9), self.streaked_muscle())

    def levator(self) -> None:
        # A thin funnel around prostate and rectum, wide above and tight below.
        gap = self.anatomy["levator_gap"] + 0.3 * (1 + self.level)
        half_x = torch.maximum(self.gland_width, 0.42 * self.anatomy["gland_width"]) + gap
        half_y = 0.5 * (self.anatomy["gland_height"] + 2 * self.anatomy["rectum_size"]) + 1.0
        ring = _ellipse(self.gland_x, self.y - half_y + 0.9 * self.anatomy["gland_height"], half_x, half_y)
        self.paint(ring.abs() - 0.2 + 0.12 * self.level, self.tissue("muscle"), _ramp(self.y, -2.2, -0.6))

    def bladder(self) -> None:
        fill = self.anatomy["bladder_fill"] * self.above.sqrt()
        centre = -1.3 - 0.9 * self.gland_height * self.gland_present - 0.2 * self.above
        inner = _ellipse(self.x, self.y - centre, 3.1 * fill + 0.05, 2.2 * fill + 0.05)
        self.paint(inner - 0.3, self.grainy("wall"), self.above.sign())
        self.paint(inner, self.tissue("fluid", 0.3), self.above.sign())

    def seminal_vesicles(self) -> None:
        size = self.anatomy["vesicle_size"]
        turned = _turn(self.side - 1.5 * size, self.y - 0.95 + 0.15 * self.grain, -0.22)
        lobules = torch.lerp(self.tissue("wall"), self.tissue("fluid"), _ramp(self.grain, -0.7, 0.3) * 0.75)
        shown = _ramp(self.level, self.anatomy["gland_base"] - 0.06, self.anatomy["gland_base"] + 0.02)
        self.paint(_ellipse(*turned, 1.9 * size, 0.75 * size), lobules, shown)

    def rectum(self) -> None:
        anatomy = self.anatomy
        size = anatomy["rectum_size"] * (0.72 + 0.28 * _ramp(self.level, -1.0, 0.0))
        front = 0.78 * torch.maximum(self.gland_height, 0.45 * anatomy["gland_height"])
        self.rectum_x = anatomy["rectum_x"] * (1 + self.level) / 2
        self.rectum_y = front + 0.15 + size + 0.7 * self.above
        x, y = self.x - self.rectum_x, self.y - self.rectum_y
        inner = _ellipse(x, y, size, size)
        self.paint(inner - 0.35, self.tissue("muscle"))
        self.paint(inner - 0.2, self.grainy("wall"))
        stool = self.signals["stool"] * anatomy["rectum_stool"] * (1 + 3 * TEXTURE * self.grain)
        self.paint(inner + 0.12, stool.clamp(min=0))
        # Gas rises to the front wall of a patient on the back.
        gas = torch.maximum(_ellipse(x, y + (1.1 - anatomy["rectum_gas"]) * size, size, size), inner + 0.2)
        self.paint(gas, self.signals["cortex"], (anatomy["rectum_gas"] > 0.35).float())

    def sphincter(self) -> None:
        # Below the apex the urethra's muscle stands where the prostate was.
        ring = _ellipse(self.gland_x, self.gland_y - 0.1, 1.25, 1.05)
        self.paint(ring, self.tissue("muscle"), self.below)
        self.paint(ring + 0.4, self.grainy("transition", 1.5), self.below)
        self.paint(ring + 0.85, self.tissue("vein"), self.below * 0.7)

    def veins(self) -> None:
        # Bright veins hug the gland at the sides and in front; they are easily taken for peripheral zone.
        shell = (self.gland_outline - 0.35).abs() - 0.42
        density = self.anatomy["vein_density"]
        self.paint(shell, self.tissue("vein"), _ramp(self.speckle, 1.1 - density, 1.7 - density) * 0.85)
        front = _ellipse(self.gland_x, self.gland_y + 1.25 * self.gland_height, 0.8 * self.gland_width, 0.7)
        self.paint(front, self.grainy("vein", 2.5), 0.6 * self.gland_present)

    def gland(self) -> None:
        shown = self.gland_present
        self.paint(self.gland_outline, self.grainy("peripheral"), shown)
        self.lesion(shown)
        self.transition_zone(shown)
        capsule = (self.gland_outline + 0.06).abs() - 0.07
        self.paint(capsule, self.signals["muscle"], shown * self.anatomy["capsule"])

    def transition_zone(self, shown: Tensor) -> None:
        size = self.anatomy["transition_size"] * (0.62 + 0.38 * _ramp(self.height_in_gland, -1.0, 0.1))
        y = self.gland_y + 0.75 * (1 - size) * self.gland_height
        inner = _ellipse(self.gland_x, y, size * self.gland_width, size * self.gland_height)
        nodules = self.anatomy["nodularity"] * torch.tanh(1.5 * self.grain)
        value = self.signals["transition"] * (1 + nodules + TEXTURE * self.speckle)
        self.paint(inner, value.clamp(min=0), shown)
        self.paint(inner.abs() - 0.09, self.signals["muscle"], 0.6 * shown)
        # The fibromuscular stroma in front is as dark as the muscle next to it.
        y = self.gland_y + 0.95 * self.gland_height
        stroma = _ellipse(self.gland_x, y, 0.55 * self.gland_width, 0.45)
        self.paint(torch.maximum(stroma, self.gland_outline), self.tissue("muscle"), 0.8 * shown)
        self.paint(_ellipse(self.gland_x, self.gland_y - 0.1, 0.25, 0.22), self.signals["fluid"], 0.5 * shown)

    def lesion(self, shown: Tensor) -> None:
        anatomy, angle = self.anatomy, self.anatomy["lesion_angle"]
        x = self.gland_x - anatomy["lesion_side"].sign() * torch.sin(angle) * 0.8 * self.gland_width
        y = self.gland_y - torch.cos(angle) * 0.72 * self.gland_height
        reach = 1 - (self.height_in_gland - anatomy["lesion_level"]).abs() / 0.5
        exists = (anatomy["lesion_present"] < LESION_RATE) & (reach > 0)
        size = anatomy["lesion_size"] * reach.clamp(min=0.05).sqrt()
        in_gland = torch.maximum(_ellipse(x, y, size, 0.8 * size), self.gland_outline)
        self.paint(in_gland, self.tissue("lesion"), shown * exists * anatomy["lesion_depth"].sqrt())


@dataclass(frozen=True)
class Slices:
    """Painted slices before any scanner effect."""

    signal: Tensor  # (cases, slices, H, W)
    mask: Tensor  # (cases, slices, H, W) bool, the prostate
    coil_distance: Tensor  # (cases, slices, H, W), cm from the middle of the rectum


def spread_levels(slices: int) -> Tensor:
    """The levels of the middles of slices that share the pelvis evenly, from below."""
    return (torch.arange(slices) + 0.5) / slices * 2 - 1


def paint_slices(anatomy: Anatomy, view: View, levels: Tensor, signals: Mapping[str, Tensor]) -> Slices:
    """Paint every case's slices at the given levels, with the given signal per tissue, each (cases, 1, 1, 1)."""
    painter = _Painter(anatomy, view, levels, signals)
    painter.body()
    painter.bones()
    painter.muscles()
    painter.levator()
    painter.bladder()
    painter.seminal_vesicles()
    painter.rectum()
    painter.sphincter()
    painter.veins()
    painter.gland()
    coil_distance = _length(painter.x - painter.rectum_x, painter.y - painter.rectum_y)
    return Slices(painter.image, painter.mask, coil_distance)
