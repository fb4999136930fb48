"""Files of one JSON object a line that only ever grow: a kill loses nothing, and several processes may append."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from harmofl.documents import parse_json
from harmofl.errors import UsageError
from harmofl.files import wait_for_lock

Line = dict[str, Any]


def read_json_lines(path: Path) -> list[Line]:
    """Read every line; a last one that is torn, or still being written, does not count."""
    try:
        return _parse(path, path.read_bytes())[0]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


class LockedLines:
    """A file of JSON lines that no other process can append to meanwhile."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._file = file
        content = file.read()
        self.lines, self._end = _parse(path, content)
        self._separator = b"" if content[: self._end].endswith(b"\n") or not self._end else b"\n"

    def append(self, line: Line) -> None:
        """Write a line and see it on disk, in place of a torn one if there is any."""
        self._file.seek(self._end)
        self._file.truncate()
        self._file.write(self._separator + json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._end, self._separator = self._file.tell(), b""
        self.lines.append(line)


@contextmanager
def lock_json_lines(path: Path) -> Iterator[LockedLines]:
    """Open a file, which need not exist yet, as soon as no other process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        wait_for_lock(file.fileno())
        yield LockedLines(path, file)


def _parse(path: Path, content: bytes) -> tuple[list[Line], int]:
    """Return all whole lines, and where in the file they end."""
    *texts, rest = content.split(b"\n")
    if _is_whole(rest):  # an editor may have dropped the last newline
        texts, rest = [*texts, rest], b""
    lines = [_parse_line(path, number, text) for number, text in enumerate(texts, start=1) if text.strip()]
    return lines, len(content) - len(rest)


def _is_whole(text: bytes) -> bool:
    """Whether a line is complete: an object that was torn anywhere is no valid JSON."""
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _parse_line(path: Path, number: int, text: bytes) -> Line:
    try:
        line = parse_json(text)
    except ValueError as error:
        raise UsageError(f"{path}, line {number} is not valid JSON: {error}") from None
    if not isinstance(line, dict):
        raise UsageError(f"{path}, line {number} must be a JSON object, not {type(line).__name__}")
    return line
