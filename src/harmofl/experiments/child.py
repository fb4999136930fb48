"""A cell's process: one run, which ends as soon as the process that started it is gone."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from pathlib import Path

from harmofl.errors import RunError, UsageError
from harmofl.federation.lean_imports import import_lean
from harmofl.files import what_failed

PREFIX = "harmofl: "
TRAINED = "trained="


def main() -> None:
    """Train as this process's arguments say: settings file, folder, number of workers, and perhaps `resume`.

    The option `trained=FOLDER` names a folder for what rounds of training gave, which another cell may use.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the experiment's to handle
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format=f"{PREFIX}%(message)s")
    warnings.simplefilter("ignore")  # other packages' deprecations are not for users to read
    import_lean()
    try:
        _train(*sys.argv[1:])
    except (RunError, UsageError) as error:
        sys.exit(f"{PREFIX}{error}")
    except OSError as error:
        sys.exit(f"{PREFIX}{what_failed(error)}")


def _train(config: str, out: str, workers: str, *options: str) -> None:
    from harmofl.displays.plain import PlainDisplay  # after the thread: it may take seconds
    from harmofl.federation.training import train

    trained = next((Path(option.removeprefix(TRAINED)) for option in options if option.startswith(TRAINED)), None)
    resume = "resume" in options
    train(config=config, out=out, workers=int(workers), resume=resume, watch=PlainDisplay(), trained=trained)


def _leave_with_parent() -> None:
    """Wait for the end of a pipe that only the parent holds open: however it ends, the pipe ends too."""
    while os.read(0, 1):
        pass
    os._exit(1)
