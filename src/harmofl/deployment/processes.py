"""An engine's processes, kept by ours: ended in good order, and started again after a pause."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class Stop(BaseException):
    """We were asked to end: not an error, and nothing that an `except Exception` may hold up."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the block in good order; a second one changes nothing."""
    asked = threading.Event()

    def stop(number: int, frame: object) -> None:
        if not asked.is_set():
            asked.set()
            raise Stop

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Stop:
        logger.info("stopped")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes], patience: float) -> None:
    """End a process, and with force if it does not listen for so many seconds."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Pauses:
    """How long to wait before the next attempt: longer each time, from the beginning again after a success."""

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def next(self, lasted: float) -> float:
        """After an attempt that lasted so many seconds."""
        if lasted > LONGEST_PAUSE:
            self._next = SHORTEST_PAUSE
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return pause
