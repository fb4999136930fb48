"""An engine's processes, started by ours: ended in good order, and started again after a pause."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
LAST_SECONDS = 10.0
"""How long a process whose parent has ended may take to end in good order."""


class Stop(BaseException):
    """Somebody asked us to end: not an error, and nothing that an `except Exception` may hold up."""


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


def keep_running(run_once: Callable[[], str], ended: threading.Event | None = None) -> None:
    """Run something again and again, with a pause in between, until `ended` is set; it returns why it ended."""
    ended, pauses = ended or threading.Event(), Pauses()
    while not ended.is_set():
        started = time.monotonic()
        reason = run_once()
        if not ended.is_set():
            pause = pauses.next(time.monotonic() - started)
            logger.warning("%s; trying again in %.0f s", reason, pause)
            ended.wait(pause)


class Pauses:
    """How long to wait before the next attempt: longer each time, from the beginning again after a success."""

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def next(self, lasted: float) -> float:
        """The pause after an attempt that lasted so many seconds."""
        if lasted > LONGEST_PAUSE:
            self._next = SHORTEST_PAUSE
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return pause


def end_process(process: subprocess.Popen[str] | subprocess.Popen[bytes], patience: float) -> None:
    """End a process, by force if it has not ended after so many seconds."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_with_parent() -> None:
    """End this process soon after its parent, however that ended: even by kill -9.

    The parent holds the other end of our standard input and never writes to it.
    """

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LAST_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
