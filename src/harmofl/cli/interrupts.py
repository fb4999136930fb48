"""What is said when a command is stopped."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def interruptible(hint: Callable[[], str]) -> Iterator[None]:
    """Say how to go on after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nharmofl: stopped; {hint()}", file=sys.stderr)
        raise


def how_to_resume(out: Path, command: Sequence[str] = ("train",)) -> str:
    """The command that goes on with a run, if there is anything to go on with."""
    if not (out / "config.toml").exists():
        return "nothing was written yet"
    return "go on with: " + shlex.join(["harmofl", *command, "--out", str(out), "--resume"])
