"""An append-only log of what was asked, refused and sent, at both ends: one JSON object a line.

Each line holds the digest of the one before. A line that is changed, taken out or put in breaks the chain
(`harmofl deploy audit`).
"""

from __future__ import annotations

import errno
import getpass
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harmofl.documents import parse_json
from harmofl.errors import UsageError
from harmofl.federation.messages import Reply, Request
from harmofl.federation.transports import Transport, limit_replies
from harmofl.files import sync_folder, wait_for_lock
from harmofl.states import num_bytes

AUDIT = "audit.jsonl"
BEGINNING = "0" * 64
LONGEST_LINE = 2**16
PAUSE = 60.0
MOST_REASONS = 1000
SEVERAL = ("several", "for other reasons, too many to name")
"""Under this, all beyond that many are counted together."""

Entry = Mapping[str, Any]


def audit_log(kit: Path) -> Path:
    """Where a party's log is."""
    return kit / AUDIT


def user_name() -> str:
    """Who runs this process; in a container it may be a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def chain(entry: Entry, previous: str) -> str:
    """The digest of an entry that follows another one."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def write_entry(path: Path, **entry: Any) -> None:
    """Add an entry, and see it on disk before anything leaves; several processes may write."""
    is_new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        wait_for_lock(handle)
        values = {"time": time.strftime("%FT%TZ", time.gmtime()), **entry}
        previous = _last_digest(handle)
        line = {**values, "previous": previous, "digest": chain(values, previous)}
        text = _to_line(line) + b"\n"
        if os.write(handle, text) < len(text):  # a disk takes what still fits, and only the next write fails
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    finally:
        os.close(handle)
    if is_new:
        sync_folder(path.parent)


def _to_line(entry: Entry) -> bytes:
    """An entry as it stands in the log, and in no other way: one name twice would read otherwise to people."""
    return json.dumps(entry, ensure_ascii=False).encode()


def _last_digest(handle: int) -> str:
    """The digest of the last line; a line that a full disk cut short is ended, and breaks the chain for all to see."""
    size = os.fstat(handle).st_size
    tail = os.pread(handle, LONGEST_LINE, max(0, size - LONGEST_LINE))
    if tail and not tail.endswith(b"\n"):
        os.write(handle, b"\n")
    lines = tail.splitlines()
    try:
        return str(parse_json(lines[-1])["digest"]) if lines else BEGINNING
    except (ValueError, KeyError, TypeError):
        return "damaged"


@dataclass(frozen=True)
class Verified:
    """A log whose chain holds."""

    entries: int
    refused: int
    first: str
    last: str
    head: str
    """The digest of the last entry: whoever notes it elsewhere also sees whether the end was cut off."""


def verify(path: Path) -> Verified:
    """Check every link of the chain; an error names the first line that does not fit."""
    previous, found = BEGINNING, []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    for number, text in enumerate(lines, start=1):
        entry = _read_entry(path, number, text)
        digest, before = entry.pop("digest"), entry.pop("previous")
        if before != previous or digest != chain(entry, previous):
            raise UsageError(f"{path}, line {number}: the chain is broken here: this line or one before it was changed")
        previous = digest
        found.append(entry)
    refused = sum(str(entry.get("outcome", "")).startswith("refused") for entry in found)
    times = [str(entry.get("time", "")) for entry in found] or [""]
    return Verified(len(found), refused, times[0], times[-1], previous)


def _read_entry(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        entry = parse_json(text, LONGEST_LINE)
        if isinstance(entry, dict) and {"digest", "previous"} <= entry.keys() and _to_line(entry) == text:
            return entry
    except ValueError:
        pass
    raise UsageError(f"{path}, line {number}: the chain is broken here: this is no entry")


@dataclass
class Refusals:
    """Strangers and failed logins at the server's door: a line a minute for each reason, with how many there were."""

    path: Path
    _noted: dict[tuple[str, str], float] = field(default_factory=dict)
    """When each was written down last, the oldest first."""
    _since: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often it happened again since."""

    def note(self, who: str, reason: str) -> None:
        """Note that somebody was refused."""
        self._end_pauses()
        key = (who[:200], reason[:200])
        if key not in self._noted and len(self._noted) >= MOST_REASONS:  # made-up ones shall not fill the memory
            key = SEVERAL
        if key in self._noted:
            self._since[key] += 1
        else:
            self._write(key, 1)

    def _end_pauses(self) -> None:
        """Write down what happened again while it was not written; what did not is forgotten."""
        now = time.monotonic()
        while self._noted and now - (oldest := next(iter(self._noted.items())))[1] >= PAUSE:
            del self._noted[oldest[0]]
            if times := self._since.pop(oldest[0], 0):
                self._write(oldest[0], times)

    def _write(self, key: tuple[str, str], times: int) -> None:
        self._noted[key] = time.monotonic()
        who, reason = key
        write_entry(self.path, who=who, outcome=f"refused: {reason}", times=times)


@dataclass(frozen=True)
class AuditedTransport:
    """Writes down what the server asks of each site, and what comes back."""

    transport: Transport
    path: Path
    settings: Callable[[Request], str]
    """The digest of a request's settings."""

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """Wait for sites."""
        return self.transport.sites(minimum, timeout)

    def limit_replies(self, largest: int) -> None:
        """Refuse larger replies, if the engine can."""
        limit_replies(self.transport, largest)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Ask the sites; an entry for each answer."""
        began = time.monotonic()
        for reply in self.transport.ask(requests, timeout):
            request = requests[reply.site]
            write_entry(
                self.path,
                who=reply.site,
                run=request.run,
                settings=self.settings(request),
                asked=request.kind,
                round=request.round,
                outcome=f"failed: {reply.error[:200]}" if reply.error else "done",
                sent=num_bytes(request.state, request.combined),
                received=num_bytes(reply.state, reply.sent),
                seconds=round(time.monotonic() - began, 3),
            )
            yield reply
