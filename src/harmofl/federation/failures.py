"""What went wrong at a site, in words."""

from __future__ import annotations

from collections.abc import Callable

from harmofl.errors import UsageError

DescribeError = Callable[[Exception], str]
"""From what went wrong at a site to what the server hears of it."""


class TrainingDivergedError(Exception):
    """A round that ended in NaN or infinity."""


def describe_fully(error: Exception) -> str:
    """All about an error, for a server on the same machine."""
    kind = "" if isinstance(error, (TrainingDivergedError, UsageError)) else f"{type(error).__name__}: "
    return f"{kind}{error}"
