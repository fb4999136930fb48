"""Who is connected, as the engine's processes see it: a small file that the health endpoint reads."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harmofl.documents import parse_json
from harmofl.files import write_whole

STATUS = "status.json"
LARGEST = 2**20
SERVER = "server"
"""What a site that is connected is connected to."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Status:
    """Whom a party is connected to, since when, and why not."""

    connected: tuple[str, ...] = ()
    since: str = ""
    error: str = ""


def status_file(folder: Path) -> Path:
    """Where a party's status is."""
    return folder / "engine" / STATUS


def note_status(folder: Path, connected: Sequence[str], error: str = "") -> None:
    """Write down a change; what cannot be written down changes nothing else."""
    before = read_status(folder)
    names = tuple(sorted(connected))
    if before is not None and (before.connected, before.error) == (names, error):
        return
    now = time.strftime("%FT%TZ", time.gmtime())
    try:
        write_whole(status_file(folder), json.dumps(asdict(Status(names, now, error))))
    except OSError as problem:
        logger.debug("the status cannot be written", exc_info=problem)


def read_status(folder: Path) -> Status | None:
    """What was written down last, if anything that can be read."""
    try:
        found = parse_json(status_file(folder).read_bytes(), LARGEST)
        return Status(tuple(map(str, found["connected"])), str(found["since"]), str(found["error"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
