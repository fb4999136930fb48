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

from harmofl.deployment.processes import end

PACKAGE = __package__
LARGEST_LOG = 5_000_000
COLORS = re.compile(r"\x1b\[[0-9;]*m")
LOOPBACK = "127.0.0.1,localhost,::1"

Heard = Callable[[str], None]


def environment(engine: Path) -> dict[str, str]:
    """Nothing of Flower's leaves the machine but messages to the server, and it keeps its files to the kit."""
    own = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(engine / "home")}
    return os.environ | own | {"NO_PROXY": without_proxy(), "no_proxy": without_proxy(), "PYTHONUNBUFFERED": "1"}


def without_proxy() -> str:
    """Whom to reach directly: what the user said, and always this machine."""
    said = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return ",".join(filter(None, [said, LOOPBACK]))


def settle_in() -> None:
    """Let this process, too, reach its own machine without a proxy; Flower's chatter is for the children's logs."""
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = without_proxy()
    for name in ("httpx", "flwr"):
        logging.getLogger(name).setLevel(logging.WARNING)


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Child:
    """One process of Flower's; it ends by itself if we are killed."""

    def __init__(self, module: str, arguments: Sequence[str], engine: Path, heard: Heard = lambda line: None) -> None:
        self.name = module
        self._lines: deque[str] = deque(maxlen=30)
        self._heard = heard
        self._log = RotatingFileHandler(engine / f"{module}.log", maxBytes=LARGEST_LOG, backupCount=1, encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{PACKAGE}.{module}", str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
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
        assert self.process.stdout is not None
        with closing(self._log) as log, self.process.stdout as lines:
            for line in lines:
                text = COLORS.sub("", line).rstrip()
                log.emit(logging.makeLogRecord({"msg": f"{time.strftime('%F %T')} {text.replace('%', '%%')}"}))
                self._lines.append(text)
                self._heard(text)

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self.process.poll() is not None

    def last_words(self) -> str:
        """What it said about its end, in one line."""
        self._reader.join(timeout=1)
        lines = [line for line in self._lines if line]
        start = next((number for number, line in enumerate(lines) if "Exit Code" in line), len(lines) - 3)
        return " ".join(" ".join(lines[max(start, 0) :]).split())[:500] or f"exit code {self.process.returncode}"

    def stop(self, patience: float = 12.0) -> None:
        """End it, in good order if it lets us."""
        end(self.process, patience)
        self._reader.join(timeout=1)
