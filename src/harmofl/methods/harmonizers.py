"""The layer in front of the network, and when it learns."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic.dataclasses import dataclass
from torch import Tensor

from harmofl.errors import STRICT, RefusalError, UsageError
from harmofl.methods.amplitude_normalization import AmplitudeNormalization
from harmofl.methods.bound import Bound
from harmofl.methods.layers import Band, Harmonizer, ImageShape, check_band, largest_radius
from harmofl.methods.model import Model
from harmofl.methods.pieces import LocalRound, Memory, Piece
from harmofl.states import State, snapshot

Schedule = Literal["before-training", "first-round", "every-round"]


class Harmonization(Piece):
    """Makes the layer for images of a shape, and lets it learn when `schedule` says (None: never).

    Example:
        >>> class Darker(Harmonizer):
        ...     def forward(self, images):
        ...         return images / 2
        >>> class Darken(Harmonization):
        ...     def __call__(self, image_shape):
        ...         return Darker()
        >>> import torch
        >>> Darken()((1, 2, 2))(torch.ones(1, 1, 2, 2)).max()
        tensor(0.5000)
    """

    schedule: Schedule | None = None

    @abstractmethod
    def __call__(self, image_shape: ImageShape) -> Harmonizer:
        """Make the layer for images (C, H, W)."""

    def sends(self, model: Model) -> State:
        """What the layer measures."""
        return model.harmonizer.measurement()

    @property
    def measures_first(self) -> bool:
        """Whether sites measure their images before the first round."""
        return self.schedule == "before-training"

    def sends_in(self, round_number: int) -> bool:
        """Before the first round, or in those in which the layer learns."""
        return self.learns_in(round_number) if round_number else self.measures_first

    def bound(self, model: Model) -> Bound | None:
        """The bound on the layer's measurement."""
        return model.harmonizer.bound()

    def could_reveal_images(self, model: Model) -> bool:
        """Whether a site with few images must keep its measurement to itself."""
        return model.harmonizer.could_reveal_images()

    def measure(self, model: Model, images: Iterable[Tensor], memory: Memory) -> None:
        """Let the layer measure the site's training images."""
        layer = model.harmonizer
        layer.measure(images)
        memory.kept, memory.sent = _own_buffers(layer), layer.measurement()

    def receive(self, model: Model, memory: Memory) -> None:
        """Give the layer what is the site's own and what the server combined."""
        if self.measures_first and not model.harmonizer.own <= memory.kept.keys():
            raise RefusalError(
                "it was not there when the sites measured their images, before the first round, and this method needs "
                "its measurement: it can take part in another run"
            )
        model.harmonizer.load_state_dict(memory.kept, strict=False)
        if memory.received:
            model.harmonizer.receive(memory.received)

    def start(self, local: LocalRound) -> None:
        """Freeze the layer, unless it learns in this round."""
        layer = local.model.harmonizer
        layer.learns = self.learns_in(local.number)
        if not layer.learns:
            layer.freeze()

    def finish(self, local: LocalRound) -> None:
        """Keep what is the site's own; send what was learned in this round."""
        layer, memory = local.model.harmonizer, local.memory
        memory.kept = _own_buffers(layer)
        if self.learns_in(local.number):
            memory.sent = layer.measurement()

    def learns_in(self, round_number: int) -> bool:
        """Whether the layer learns while a site trains."""
        return self.schedule == "every-round" or (self.schedule == "first-round" and round_number == 1)


def _own_buffers(layer: Harmonizer) -> State:
    return snapshot(layer, sorted(layer.own))


class Identity(Harmonization):
    """No harmonization."""

    def __call__(self, image_shape: ImageShape) -> Harmonizer:
        """Make a layer that leaves images as they are."""
        return Harmonizer()

    def __repr__(self) -> str:
        return "identity"


identity = Identity()


def _check_spacing(value: Any) -> tuple[float, ...] | None:
    """Return the distances of pixels along one to three axes, or say what they must be."""
    if value is None:
        return None
    steps = value if isinstance(value, (list, tuple)) else ()
    if len(steps) in (1, 2, 3) and all(type(step) in (int, float) and 0 < step < math.inf for step in steps):
        return tuple(float(step) for step in steps)
    raise ValueError("a number above 0 for each axis, such as [3, 0.6, 0.6]")


def _check_band(value: Any, info: ValidationInfo) -> Band:
    """Return a band whose radius fits the spacing, or say which there are."""
    spacing = info.data.get("spacing")
    return check_band(value) if spacing is None else check_band(value, largest_radius(spacing), "unit of spacing")


@dataclass(frozen=True, config=STRICT)
class NormalizeAmplitude(Harmonization):
    """AmplitudeNormalization, with when it learns. Nothing is harmonized at band "none".

    `spacing`: the distance of pixels along each axis, such as millimetres between a volume's slices, rows and columns;
    a radius is then in cycles per that unit. It stands first as it says how large a radius may be.
    """

    spacing: Annotated[tuple[float, ...] | None, BeforeValidator(_check_spacing)] = None
    band: Annotated[Band, BeforeValidator(_check_band)] = "dc"
    decay: Annotated[float, Field(ge=0, le=1)] = 0.1
    schedule: Schedule = "before-training"

    def __call__(self, image_shape: ImageShape) -> Harmonizer:
        """Make the layer for images of one shape."""
        if self.spacing is not None and len(self.spacing) != len(image_shape) - 1:
            raise UsageError(
                f"method.spacing = {list(self.spacing)}: must be {len(image_shape) - 1} numbers, one for each axis"
            )
        return AmplitudeNormalization(image_shape, self.band, self.decay, self.spacing)
