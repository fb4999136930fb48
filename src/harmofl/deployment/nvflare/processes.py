"""Keeps one FLARE process running in the foreground, starts it again when it dies, and leaves none behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harmofl.deployment.nvflare.names import KIT_VARIABLE, workspace
from harmofl.deployment.processes import Pauses, end, stoppable

logger = logging.getLogger(__name__)

LAST_WORDS = 5.0
"""Seconds that FLARE has to end in good order."""


def keep_running(kit: Path, client: str | None = None) -> None:
    """Run FLARE for a kit until SIGTERM or Ctrl-C."""
    logger.info("NVIDIA FLARE runs; its log is in %s", workspace(kit) / "log")
    pauses = Pauses()
    with stoppable():
        while True:
            started = time.monotonic()
            code = run_once(kit, client)
            pause = pauses.next(time.monotonic() - started)
            logger.warning("NVIDIA FLARE ended (exit code %s); it starts again in %.0f seconds", code, pause)
            time.sleep(pause)


def run_once(kit: Path, client: str | None) -> int:
    """One life of the process; it ends with us at the latest."""
    log = workspace(kit) / "log"
    log.mkdir(parents=True, exist_ok=True)
    with (
        open(log / "console.txt", "wb") as console,
        subprocess.Popen(
            command(kit, client),
            stdin=subprocess.PIPE,
            stderr=console,
            env=environment(kit),
            start_new_session=True,  # Ctrl-C is ours to handle
        ) as process,
    ):
        try:
            return process.wait()
        finally:
            end(process, LAST_WORDS)


def command(kit: Path, client: str | None) -> Sequence[str]:
    """What is run."""
    own = [] if client is None else [client]
    return [sys.executable, "-m", "harmofl.deployment.nvflare.node", str(workspace(kit)), *own]


def environment(kit: Path) -> dict[str, str]:
    """Ours, and whose process it is."""
    return {**os.environ, KIT_VARIABLE: str(kit), "GRPC_VERBOSITY": "ERROR", "PYTHONUNBUFFERED": "1"}
