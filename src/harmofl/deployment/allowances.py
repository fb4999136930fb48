"""How much a site may send: what it was asked for and a margin, counted before anything is kept. No engine here."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from harmofl.deployment.replies import LARGEST_REPLY
from harmofl.files import write_whole


class Allowances:
    """The bytes that each site may still send in answer to what it was last asked.

    >>> allowances = Allowances()
    >>> allowances.grant("A", 100)
    >>> allowances.spend("A", 60), allowances.spend("A", 60), allowances.spend("B", 1)
    (True, False, False)
    """

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._lock = Lock()

    def grant(self, site: str, num_bytes: int) -> None:
        """Allow so many bytes from now on; what was left before is forgotten."""
        with self._lock:
            self._left[site] = num_bytes

    def spend(self, site: str, num_bytes: int) -> bool:
        """Whether a site may send these bytes; afterwards it may send so much less."""
        with self._lock:
            self._left[site] = self._left.get(site, 0) - num_bytes
            return self._left[site] >= 0


def write_limit(path: Path, largest: int) -> None:
    """Tell another process of this machine how large a reply may be."""
    write_whole(path, f"{largest}\n")


def read_limit(path: Path) -> int:
    """The largest reply that this file allows; without the file, the largest that there may ever be."""
    try:
        return min(int(path.read_text(encoding="ascii")), LARGEST_REPLY)
    except (OSError, ValueError):
        return LARGEST_REPLY
