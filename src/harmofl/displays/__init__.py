"""What people see while something runs: a live display in a terminal or notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from harmofl.displays.live import in_notebook, show_live
from harmofl.displays.plain import PlainDisplay
from harmofl.events import Watch, Watchers, ignore


@contextmanager
def open_display(quiet: bool = False) -> Iterator[Watch]:
    """The display of a command: live in a terminal, plain lines in a file or pipe, nothing if `quiet`."""
    if quiet:
        yield ignore
    elif sys.stdout.isatty():
        with show_live() as watch:
            yield watch
    else:
        yield PlainDisplay()


@contextmanager
def show_progress(wanted: bool, watch: Watch = ignore) -> Iterator[Watch]:
    """The display of a call from Python, beside the caller's own watch; nothing outside of terminals and notebooks."""
    if wanted and (sys.stdout.isatty() or in_notebook()):
        with show_live() as display:
            yield Watchers((display, watch))
    else:
        yield watch
