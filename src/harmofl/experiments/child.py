"""A cell's process: the command itself, which leaves as soon as the process that started it is gone."""

from __future__ import annotations

import os
import signal
import threading


def main() -> None:
    """Run `harmofl` with this process's arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the experiment's to handle
    threading.Thread(target=_leave_with_parent, daemon=True).start()

    from harmofl.cli import main as command

    command()


def _leave_with_parent() -> None:
    """Wait for the end of a pipe that only the parent holds open: however it ends, the pipe ends too."""
    while os.read(0, 1):
        pass
    os._exit(1)
