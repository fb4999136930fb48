"""What a hospital lets a server vary, and the least that anything that leaves it must be computed from: `[policy]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from harmofl.errors import STRICT
from harmofl.federation.moves import LARGEST_MOVE, LARGEST_TENSOR_MOVE
from harmofl.settings.schema import setting_names

Count = Annotated[int, Field(ge=1)]


class Rules(BaseModel):
    """A table of `site.toml`: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, **STRICT)


class Fewest(Rules):
    """The fewest in each part of the hospital's images."""

    train: Count
    val: Count
    test: Count


class Policy(Rules):
    """What this hospital allows. Every default is the closed one."""

    approval: Literal["ask", "policy", "none"] = Field(
        "ask",
        description="ask: a person here approves each run's settings (`harmofl deploy approve`); policy: runs "
        "that stay within `allow` start by themselves; none: every run starts, within the limits below",
    )
    allow: dict[str, list[Any]] = Field(
        {},
        description="for approval = 'policy': settings that a server may vary, with the values it may choose from; two "
        "numbers are the ends of a range; all others must have a value of one of the task's presets",
    )
    runs: Count = Field(5, description="how many runs may be started with the same approved settings")
    fewest_images: Fewest = Field(
        Fewest(train=16, val=4, test=4), description="(tiles, slices) that a run uses here; with fewer it is refused"
    )
    fewest_patients: Fewest = Field(
        Fewest(train=5, val=2, test=2), description="(or volumes) that these images come from"
    )
    score_digits: Annotated[int, Field(ge=1, le=17)] = Field(
        3, description="scores leave rounded to so many decimals, losses to so many digits"
    )
    largest_move: Annotated[float, Field(gt=0)] = Field(
        LARGEST_MOVE,
        description="how far the global model may have moved since the last request, as a part of its own length; one "
        "that has moved further is refused",
    )
    largest_tensor_move: Annotated[float, Field(gt=0)] = Field(
        LARGEST_TENSOR_MOVE,
        description="the same for each of its tensors alone, so that no layer can be emptied or replaced at once",
    )
    require_secure_aggregation: bool = Field(
        False,
        description="whether runs without secure aggregation (federation.secure_aggregation) are refused, in which the "
        "server would see this hospital's own updates",
    )
    initial_model: bool = Field(
        False, description="whether a run may start from a model of the server's, not from random weights of its seed"
    )

    @field_validator("allow")
    @classmethod
    def _known(cls, allow: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for name, values in allow.items():
            if name not in setting_names() and not name.startswith("method."):
                raise ValueError(f"settings' names, such as 'training.batch_size'; {name!r} is none")
            if not values:
                raise ValueError(f"some values for {name!r}")
        return allow

    def permits(self, name: str, value: Any) -> bool:
        """Whether `allow` has this value of a setting.

        >>> policy = Policy(allow={"training.rounds": [1, 200], "model.network": ["unet"], "seed": [0, 1, 2]})
        >>> policy.permits("training.rounds", 50), policy.permits("model.network", "densenet")
        (True, False)
        """
        allowed = self.allow.get(name, [])
        numbers = [each for each in allowed if type(each) in (int, float)]
        if len(numbers) == len(allowed) == 2 and type(value) in (int, float):
            return bool(min(numbers) <= value <= max(numbers))
        return any(type(each) is type(value) and each == value for each in allowed)


def too_few(found: Mapping[str, int], fewest: Fewest, what: str) -> str:
    """Say where there are fewer than a hospital allows; empty if nowhere."""
    short = [
        f"{part} {number} of {getattr(fewest, part)}"
        for part, number in found.items()
        if number < getattr(fewest, part)
    ]
    return f"{what} in {', '.join(short)}" if short else ""
