"""How Flower's clients wait for a message's parts, and where they do not go.

Flower announces a message before its parts have arrived, at each of its stations. Whoever looks too early would look
again after one second, then after two, four and so on: most of a round, if nobody trains for long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

QUICKLY: dict[str, Any] = {"initial_backoff": 0.05, "max_tries_per_object": None}
"""Look again soon, and as often as it takes: large messages over slow lines take their time, at most two hours."""
SELDOM, OFTEN = 1.0, 0.1
"""The longest wait between two looks: of a server, which may wait for hundreds of sites, and of one site."""


def follow_nobody(client: type[Any]) -> None:
    """Let Flower's clients ask the server and nobody else.

    They would follow a redirection to any address: with it, a server could have a hospital's machine send requests to
    others in the hospital's network.
    """
    make = client.__init__
    if getattr(make, "follows_nobody", False):
        return

    @wraps(make)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self._client.follow_redirects = False

    init.follows_nobody = True  # type: ignore[attr-defined]
    client.__init__ = init


def look_often(pull: Callable[..., Any], longest_wait: float = SELDOM) -> Callable[..., Any]:
    """The same function of Flower's, which looks for missing parts often."""
    return pull if isinstance(pull, partial) else partial(pull, **QUICKLY, backoff_cap=longest_wait)
