"""How long the rest of some work will take."""

from __future__ import annotations

import time

from harmofl.displays.words import duration
from harmofl.events import StepDone


class Pace:
    """Times the steps of one piece of work after the other; a count that goes back begins the next piece."""

    def __init__(self) -> None:
        self._first, self._last, self._started = 0, -1, 0.0

    def time_left(self, step: StepDone) -> str:
        """In words; empty while nothing can be said, and for the last second."""
        if step.done <= self._last or self._last < 0:
            self._first, self._started = step.done, time.monotonic()
        self._last = step.done
        timed = step.done - self._first
        seconds = (time.monotonic() - self._started) / timed * (step.total - step.done) if timed else 0.0
        return f"about {duration(seconds)} left" if seconds >= 1 else ""
