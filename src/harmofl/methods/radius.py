"""How far a step perturbs the weights: an absolute length, or a part of the weights' own norm."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs
from torch import Tensor
from torch.nn.utils import get_total_norm

from harmofl.errors import STRICT

USUAL_RADIUS = 0.05

Length = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=STRICT)
class Radius:
    """The length of a perturbation δ of the weights θ.

    Args:
        radius: ‖δ‖; 0.05 if neither length is given.
        radius_relative: ‖δ‖ as a part of ‖θ‖, the norm of the weights that move, at every step. It means the same for
            every network. Only one of the two may be given.

    Example:
        >>> import torch
        >>> Radius(radius_relative=0.1).length([torch.tensor([3.0]), torch.tensor([4.0])])
        tensor(0.5000)
        >>> Radius()
        Radius(radius=0.05, radius_relative=None)
    """

    alternatives: ClassVar[tuple[str, ...]] = ("radius", "radius_relative")

    radius: Length | None = USUAL_RADIUS
    radius_relative: Length | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_one(cls, given: ArgsKwargs) -> ArgsKwargs:
        """A relative radius takes the place of the usual one; two lengths, or none, are an error."""
        places = dict(zip(cls.alternatives, given.args, strict=False))
        values = places | (given.kwargs or {})
        if values.get("radius_relative") is not None:
            values.setdefault("radius", None)
        lengths = [values.get("radius", USUAL_RADIUS), values.get("radius_relative")]
        if lengths.count(None) != 1:
            raise ValueError(f"radius = {lengths[0]}, radius_relative = {lengths[1]}: give one of the two")
        return ArgsKwargs(given.args[len(places) :], values)

    @property
    def is_zero(self) -> bool:
        """Whether nothing is perturbed."""
        return not (self.radius or self.radius_relative)

    def length(self, weights: list[Tensor]) -> float | Tensor:
        """‖δ‖ for these weights."""
        if self.radius_relative is None:
            return self.radius or 0.0
        return self.radius_relative * get_total_norm([weight.detach() for weight in weights])
