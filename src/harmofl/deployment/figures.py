"""What a party has done so far, counted from its audit log as it grows."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harmofl.deployment.audit import LONGEST_LINE, Entry, audit_log
from harmofl.documents import parse_json

OUTCOMES = ("done", "refused", "failed")
AT_ONCE = 2**20
"""Bytes of the log that are read in one go."""


@dataclass
class Figures:
    """Counters since the log began."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By what was asked, and how it ended."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Until the answers were there, by what was asked."""
    refusals: int = 0
    """Requests, messages and strangers that were refused."""
    received: int = 0
    sent: int = 0
    rounds: int = 0
    last_run: str = ""
    last_round: int = 0
    last_answer: str = ""
    last_error: dict[str, str] | None = None

    def count(self, entry: Entry) -> None:
        """Add one entry of the log."""
        outcome = str(entry.get("outcome", ""))
        kind = next((name for name in OUTCOMES if outcome.startswith(name)), "")
        if kind == "refused":
            self.refusals += to_count(entry.get("times", 1))
        if kind in ("refused", "failed"):
            self.last_error = {name: str(entry.get(name, "")) for name in ("time", "who", "outcome")}
        if kind and entry.get("asked"):
            self._count_answer(str(entry["asked"]), kind, entry)

    def _count_answer(self, asked: str, kind: str, entry: Entry) -> None:
        self.answers[asked, kind] += 1
        self.received += to_count(entry.get("received"))
        self.sent += to_count(entry.get("sent"))
        seconds = entry.get("seconds")
        self.seconds[asked] = self.seconds.get(asked, 0.0) + (seconds if isinstance(seconds, (int, float)) else 0.0)
        if kind != "done":
            return
        self.last_answer = str(entry.get("time", ""))
        place = str(entry.get("run", "")), to_count(entry.get("round"))
        if asked == "train" and place != (self.last_run, self.last_round):
            self.rounds += 1
            self.last_run, self.last_round = place


def to_count(value: Any) -> int:
    """A count, or 0 for what is none."""
    return value if isinstance(value, int) and value >= 0 else 0


class AuditReader:
    """Reads a party's log on from where it stopped; another file in its place is read from the beginning."""

    def __init__(self, folder: Path) -> None:
        self._path = audit_log(folder)
        self._figures = Figures()
        self._offset = self._file = 0
        self._reading = threading.Lock()

    def figures(self) -> Figures:
        """The counters as of now; a log that cannot be read leaves them as they were."""
        with self._reading:
            with suppress(OSError):
                self._read_on()
            return self._figures

    def _read_on(self) -> None:
        with open(self._path, "rb") as file:
            about = self._path.stat()
            if about.st_ino != self._file or about.st_size < self._offset:
                self._figures, self._offset, self._file = Figures(), 0, about.st_ino
            file.seek(self._offset)
            while lines := file.readlines(AT_ONCE):
                for line in lines:
                    if not line.endswith(b"\n"):  # it is just being written
                        return
                    self._offset += len(line)
                    self._count(line)

    def _count(self, line: bytes) -> None:
        try:
            entry = parse_json(line, LONGEST_LINE)
        except ValueError:
            return  # damage is for `harmofl deploy audit`
        if isinstance(entry, dict):
            self._figures.count(entry)
