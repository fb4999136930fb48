"""Values of settings that need a look of their own before they count."""

from __future__ import annotations

import math
from typing import Any


def check_intensity(value: Any) -> str | list[float]:
    """Return a valid choice of what becomes [0, 1], or say which there are."""
    if isinstance(value, str) and value in ("auto", "percentile", "range"):
        return value
    if isinstance(value, list) and len(value) == 2 and all(type(end) in (int, float) for end in value):
        low, high = map(float, value)
        if math.isfinite(low) and math.isfinite(high) and low < high:
            return [low, high]
    raise ValueError("'auto', 'percentile', 'range' or [low, high] with low below high")


def as_names(value: Any) -> Any:
    """Names as text, also where they are numbers."""
    return [str(name) if type(name) is int else name for name in value] if isinstance(value, list) else value


def none_if_empty(value: Any) -> Any:
    """An empty name means none, as TOML has no word for None."""
    return None if value == "" else value


def check_spacing(value: Any) -> Any:
    """Return three distances above 0, or say that there must be three."""
    numbers = value if isinstance(value, list) and all(type(step) in (int, float) for step in value) else []
    if value is None or (len(numbers) == 3 and all(math.isfinite(step) and step > 0 for step in numbers)):
        return None if value is None else [float(step) for step in numbers]
    raise ValueError("three numbers above 0, in millimetres, such as [3, 0.6, 0.6]")


def check_patch(value: Any) -> Any:
    """Return three lengths from 8 to 1024, or say that there must be three."""
    numbers = value if isinstance(value, list) and all(type(length) is int for length in value) else []
    if value is None or (len(numbers) == 3 and all(8 <= length <= 1024 for length in numbers)):
        return value
    raise ValueError("three whole numbers from 8 to 1024, such as [16, 96, 96]")


MOST_LEVELS = 10
"""Of a network: seven halve the longest side that a patch may have to eight."""


def check_strides(value: Any) -> Any:
    """Return a stride of 1 or 2 for each axis of every level, or say that there must be three."""
    levels = value if isinstance(value, list) and len(value) <= MOST_LEVELS else [None]
    if value is None or all(isinstance(level, list) and len(level) == 3 and _are_strides(level) for level in levels):
        return value
    raise ValueError(
        f"a list of at most {MOST_LEVELS} levels, each of three strides of 1 or 2, such as [[1, 2, 2], [2, 2, 2]]"
    )


def _are_strides(level: list[Any]) -> bool:
    return all(type(stride) is int and stride in (1, 2) for stride in level)
