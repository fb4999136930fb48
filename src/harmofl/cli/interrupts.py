"""What happens when a command is stopped with Ctrl-C: it ends, and says how to continue."""

from __future__ import annotations

import _thread
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

AGAIN_AFTER = 0.05
"""Seconds: long enough to leave the callback in which an interrupt was lost."""


def never_lose_interrupts() -> None:
    """Interrupt again where Python lost a Ctrl-C, as it does in callbacks: finalizers, weak references, locks."""
    usual = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt and not sys.is_finalizing():
            # From another thread and later, as raised in here it would be lost again.
            threading.Timer(AGAIN_AFTER, _thread.interrupt_main).start()
        else:
            usual(lost)

    sys.unraisablehook = hook


@contextmanager
def interruptible(hint: Callable[[], str]) -> Iterator[None]:
    """Say how to continue after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nharmofl: stopped; {hint()}", file=sys.stderr)
        raise


def how_to_resume(out: Path, command: Sequence[str] = ("train",)) -> str:
    """The command that continues a run, if there is one to continue."""
    if not (out / "config.toml").exists():
        return "nothing was written yet"
    return "continue with: " + shlex.join(["harmofl", *command, "--out", str(out), "--resume"])
