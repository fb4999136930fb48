"""How a message's parts are waited for.

Flower announces a message before its parts have arrived, at each of its stations. Whoever looks too early would look
again after one second, then after two, four and so on: most of a round, if nobody trains for long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

QUICKLY: dict[str, Any] = {"initial_backoff": 0.05, "backoff_cap": 1.0, "max_tries_per_object": None}
"""Look again soon, and as often as it takes: large messages over slow lines take their time, at most two hours."""


def look_often(pull: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of Flower's, which looks for missing parts often."""
    return pull if isinstance(pull, partial) else partial(pull, **QUICKLY)
