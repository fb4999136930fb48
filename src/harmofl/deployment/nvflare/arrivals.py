"""How much a server may send to a site at once: what has begun to arrive lies in memory until it is whole."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from threading import Lock

FORGOTTEN = 360.0
"""Seconds after which a stream without news is over: FLARE gives it up after 300."""


@dataclass
class Arrivals:
    """The streams that are arriving, and the bytes that each takes of memory.

    >>> arrivals = Arrivals(100)
    >>> arrivals.admit("first", 10, announced=60), arrivals.admit("second", 50)
    (True, False)
    >>> arrivals.end("first")
    >>> arrivals.admit("second", 50)
    True
    """

    most: int
    """Bytes of all together."""
    _came: dict[Hashable, int] = field(default_factory=dict)
    _announced: dict[Hashable, int] = field(default_factory=dict)
    _heard: dict[Hashable, float] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def admit(self, stream: Hashable, num_bytes: int, announced: int = 0) -> bool:
        """Whether so many bytes more of a stream may come, which is to have so many in all."""
        now = time.monotonic()
        with self._lock:
            for silent in [each for each, heard in self._heard.items() if now - heard > FORGOTTEN]:
                self._forget(silent)
            came = self._came.get(stream, 0) + num_bytes
            announced = max(announced, self._announced.get(stream, 0))
            others = sum(max(self._came[each], self._announced[each]) for each in self._came if each != stream)
            if others + max(came, announced) > self.most:
                return False
            self._came[stream], self._announced[stream], self._heard[stream] = came, announced, now
        return True

    def end(self, stream: Hashable) -> None:
        """A stream is whole, and somebody else has it now."""
        with self._lock:
            self._forget(stream)

    def _forget(self, stream: Hashable) -> None:
        for notes in (self._came, self._announced, self._heard):
            notes.pop(stream, None)
