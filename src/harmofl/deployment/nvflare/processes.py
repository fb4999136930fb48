"""Keeps one FLARE process running in the foreground, starts it again when it dies, and leaves none behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from harmofl.deployment.nvflare.names import KIT_VARIABLE, workspace

logger = logging.getLogger(__name__)

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
LONG_LIFE = 60.0
"""Seconds after which a process is thought to have worked, so that its death is no sign of a mistake in its kit."""
LAST_WORDS = 5.0


def keep_running(kit: Path, client: str | None = None) -> None:
    """Run FLARE for a kit until SIGTERM or Ctrl-C."""
    logger.info("NVIDIA FLARE runs; its log is in %s", workspace(kit) / "log")
    with stopped_by_signals() as stop:
        pause = FIRST_PAUSE
        while not stop.is_set():
            started = time.monotonic()
            code = run_once(kit, client, stop)
            if stop.is_set():
                return
            pause = FIRST_PAUSE if time.monotonic() - started > LONG_LIFE else min(2 * pause, LONGEST_PAUSE)
            logger.warning("NVIDIA FLARE ended (exit code %s); it starts again in %.0f seconds", code, pause)
            stop.wait(pause)


def run_once(kit: Path, client: str | None, stop: threading.Event) -> int | None:
    """One life of the process; it ends with us at the latest."""
    log = workspace(kit) / "log"
    log.mkdir(parents=True, exist_ok=True)
    with open(log / "console.txt", "wb") as console:
        process = subprocess.Popen(
            command(kit, client),
            stdin=subprocess.PIPE,
            stderr=console,
            env=environment(kit),
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    try:
        while process.poll() is None and not stop.wait(0.2):
            pass
    finally:
        end(process)
    return process.returncode


def command(kit: Path, client: str | None) -> Sequence[str]:
    """What is run."""
    own = [] if client is None else [client]
    return [sys.executable, "-m", "harmofl.deployment.nvflare.node", str(workspace(kit)), *own]


def environment(kit: Path) -> dict[str, str]:
    """Ours, and whose process it is."""
    return {**os.environ, KIT_VARIABLE: str(kit), "GRPC_VERBOSITY": "ERROR", "PYTHONUNBUFFERED": "1"}


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and with force if it does not listen."""
    process.terminate()
    try:
        process.wait(timeout=LAST_WORDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin:
        process.stdin.close()


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a thread that is not the main one has none of them."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
