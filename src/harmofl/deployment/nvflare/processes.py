"""Keeps one FLARE process running in the foreground, restarts it when it dies, and leaves none behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.nvflare.names import KIT_VARIABLE, client_name, workspace
from harmofl.deployment.processes import end_process, keep_running, stoppable
from harmofl.deployment.status import note_status

logger = logging.getLogger(__name__)

LAST_WORDS = 5.0
"""Seconds that FLARE has to end in good order."""


def serve(kit: ServerKit) -> None:
    """Run FLARE's server until it is stopped."""
    run_flare(kit.folder)


def join(kit: SiteKit) -> None:
    """Run FLARE's client, which answers requests, until it is stopped."""
    run_flare(kit.folder, client_name(kit.name))


def run_flare(kit: Path, client: str | None = None) -> None:
    """Run FLARE for a kit until SIGTERM or Ctrl-C."""
    logger.info("NVIDIA FLARE runs; its log is in %s", workspace(kit) / "log")
    with stoppable():
        keep_running(lambda: run_once(kit, client))


def run_once(kit: Path, client: str | None) -> str:
    """Run the process to its end, which comes with ours at the latest; return the reason."""
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
            return f"NVIDIA FLARE ended (exit code {process.wait()})"
        finally:
            end_process(process, LAST_WORDS)
            note_status(kit, [], "NVIDIA FLARE does not run")


def command(kit: Path, client: str | None) -> Sequence[str]:
    """The command that starts FLARE's process."""
    own = [] if client is None else [client]
    return [sys.executable, "-m", "harmofl.deployment.nvflare.node", str(workspace(kit)), *own]


def environment(kit: Path) -> dict[str, str]:
    """Our environment, and which kit the process works for."""
    return {**os.environ, KIT_VARIABLE: str(kit), "GRPC_VERBOSITY": "ERROR", "PYTHONUNBUFFERED": "1"}
