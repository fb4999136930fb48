"""A small file that says what happens in the round that is under way, for whoever watches the run's folder."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harmofl.events import Event, RoundFinished, RoundsFinished, RoundStarted, RunStarted, SiteAnswered, SiteLeftOut
from harmofl.files import write_whole

MANY_SITES = 20
"""With more, answers are so many that not each of them is written at once."""
SECONDS_BETWEEN = 0.5


@dataclass
class LiveFile:
    """A watch that writes, after every answer, who has answered so far; it costs milliseconds a site and round.

    With many sites it writes twice a second: the file grows with their number, and so would the cost of an answer.
    Records are written with the checkpoint of a round, so they know nothing of a round that is not finished.
    """

    path: Path
    _now: dict[str, Any] = field(default_factory=dict)
    _written: float = -math.inf

    def __call__(self, event: Event) -> None:
        """Write what has changed."""
        match event:
            case RunStarted():
                self._start(event.done + 1, sites=list(event.sites))
            case RoundStarted():
                self._now["asked"] = list(event.asked)
            case SiteAnswered() if event.phase in ("train", "measure"):
                self._now["answered"].append(event.site)
            case SiteLeftOut():
                self._now["left_out"][event.site] = event.reason
            case RoundFinished():
                self._start(event.round + 1)
            case RoundsFinished():
                self._start(event.round, scoring=True)
            case _:
                return
        answers = isinstance(event, SiteAnswered | SiteLeftOut) and len(self._now.get("sites", ())) > MANY_SITES
        if answers and time.monotonic() - self._written < SECONDS_BETWEEN:
            return
        self._written = time.monotonic()
        with suppress(OSError):  # a full disk ends the run elsewhere, with a message
            write_whole(self.path, json.dumps(self._now) + "\n", lasting=False)

    def _start(self, number: int, **more: Any) -> None:
        self._now |= {"round": number, "since": time.time(), "answered": [], "left_out": {}} | more
