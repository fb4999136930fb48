"""Flower's own processes, as children: logged, watched, and never left behind."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from logging.handlers import RotatingFileHandler
from pathlib import Path

from harmofl.deployment.processes import end_process

PROGRAMS = f"{__package__}.runtime.programs"
LARGEST_LOG = 5_000_000
COLORS = re.compile(r"\x1b\[[0-9;]*m")
LOOPBACK = "127.0.0.1,localhost,::1"

OnLine = Callable[[str], None]


def ignore(line: str) -> None:
    """Do nothing with what a child prints; it is in its log."""


def environment(engine: Path) -> dict[str, str]:
    """Let Flower send nothing but messages to the server, and keep its files in the kit."""
    own = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(engine / "home")}
    return os.environ | own | {"NO_PROXY": without_proxy(), "no_proxy": without_proxy(), "PYTHONUNBUFFERED": "1"}


def without_proxy() -> str:
    """Hosts to reach directly: those the user named, and always this machine."""
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return ",".join(filter(None, [named, LOOPBACK]))


def prepare_process() -> None:
    """Let this process, too, reach its own machine without a proxy, and keep Flower's chatter out of its log."""
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = without_proxy()
    for name in ("httpx", "flwr"):
        logging.getLogger(name).setLevel(logging.WARNING)


def free_port() -> int:
    """Find a port of the loopback interface that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Child:
    """One process of Flower's, which ends by itself if we are killed."""

    def __init__(
        self, program: str, arguments: Sequence[str], engine: Path, on_line: OnLine = lambda line: None
    ) -> None:
        self._lines: deque[str] = deque(maxlen=30)
        self._on_line = on_line
        self._log = RotatingFileHandler(
            engine / f"{program}.log", maxBytes=LARGEST_LOG, backupCount=1, encoding="utf-8"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAMS, program, *arguments],
            stdin=subprocess.PIPE,  # its end tells the child that we have ended
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment(engine),
            start_new_session=True,  # Ctrl-C in a terminal is for us, who then end it in good order
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.process.stdin, closing(self._log) as log, self.process.stdout as lines:
            for line in lines:
                text = COLORS.sub("", line).rstrip()
                log.emit(logging.makeLogRecord({"msg": f"{time.strftime('%F %T')} {text.replace('%', '%%')}"}))
                self._lines.append(text)
                self._on_line(text)

    @property
    def ended(self) -> bool:
        """Whether it no longer runs."""
        return self.process.poll() is not None

    def last_words(self) -> str:
        """What it printed about its end, in one line."""
        self._reader.join(timeout=1)
        lines = [line for line in self._lines if line]
        start = next((number for number, line in enumerate(lines) if "Exit Code" in line), len(lines) - 3)
        return " ".join(" ".join(lines[max(start, 0) :]).split())[:500] or f"exit code {self.process.returncode}"

    def stop(self, patience: float = 12.0) -> None:
        """End it, in good order if it lets us."""
        end_process(self.process, patience)
        self._reader.join(timeout=1)
