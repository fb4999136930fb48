"""How long steps tell what they are doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Watch = Callable[[dict[str, Any]], None]


def silent(record: dict[str, Any]) -> None:
    """Watch nothing."""
