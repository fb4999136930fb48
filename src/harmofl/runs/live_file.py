"""A small file that says what happens in the round that is under way, for whoever watches the run's folder."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harmofl.events import Event, RoundFinished, RoundsFinished, RoundStarted, RunStarted, SiteAnswered, SiteLeftOut
from harmofl.files import write_whole


@dataclass
class LiveFile:
    """A watch that writes, after every answer, who has answered so far; it costs milliseconds a site and round.

    Records are written with the checkpoint of a round, so they know nothing of a round that is not finished.
    """

    path: Path
    _now: dict[str, Any] = field(default_factory=dict)

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
        with suppress(OSError):  # a full disk ends the run elsewhere, with a message
            write_whole(self.path, json.dumps(self._now) + "\n")

    def _start(self, number: int, **more: Any) -> None:
        self._now |= {"round": number, "since": time.time(), "answered": [], "left_out": {}} | more
