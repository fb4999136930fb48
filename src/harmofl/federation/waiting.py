"""Replies that wait for their turn: a few in memory, all others in a file, so that memory does not grow with sites."""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from harmofl.federation.messages import Reply
from harmofl.states import add_prefix, num_bytes, plain_copy, select_prefix

IN_MEMORY = 2
"""Replies with tensors that stay in memory."""
ON_DISK = Path("/var/tmp")
"""Where temporary files may be large: /tmp often lies in memory. TMPDIR names another place."""


@dataclass(frozen=True)
class Place:
    """Where a reply's tensors are in the file, and their names in the order that they had."""

    start: int
    length: int
    state: tuple[str, ...]
    sent: tuple[str, ...]


class Waiting:
    """Replies by the names of their sites; each is put in once and taken out once, bit for bit as it was.

    The file has no name, so that nobody else can open it and a kill leaves nothing behind.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._replies: dict[str, Reply] = {}
        """Without their tensors, if these are in the file."""
        self._places: dict[str, Place] = {}
        self._file: IO[bytes] | None = None

    def __contains__(self, site: str) -> bool:
        return site in self._replies

    def put(self, reply: Reply) -> None:
        """Let a reply wait; one of the same site that waits already is replaced."""
        self._places.pop(reply.site, None)
        self._replies.pop(reply.site, None)
        num_whole = sum(bool(each.state or each.sent) for each in self._replies.values())
        if num_whole >= self._in_memory and num_bytes(reply.state, reply.sent):
            self._places[reply.site] = self._write(reply)
            reply = replace(reply, state={}, sent={})
        self._replies[reply.site] = reply

    def take(self, site: str) -> Reply:
        """Take a reply out."""
        reply = self._replies.pop(site)
        if site not in self._places:
            return reply
        place = self._places.pop(site)
        tensors = load_tensors(self._read(place))
        state, sent = (select_prefix(part, tensors) for part in ("state", "sent"))
        return replace(
            reply, state={name: state[name] for name in place.state}, sent={name: sent[name] for name in place.sent}
        )

    def _write(self, reply: Reply) -> Place:
        if self._file is None:
            is_free = "TMPDIR" not in os.environ and os.access(ON_DISK, os.W_OK)
            self._file = tempfile.TemporaryFile(dir=ON_DISK if is_free else None)  # noqa: SIM115 - closed with this object
            weakref.finalize(self, self._file.close)
        tensors = add_prefix("state", reply.state) | add_prefix("sent", reply.sent)
        content = save_tensors({name: plain_copy(tensor) for name, tensor in tensors.items()})
        start = self._file.seek(0, os.SEEK_END)
        self._file.write(content)
        return Place(start, len(content), tuple(reply.state), tuple(reply.sent))

    def _read(self, place: Place) -> bytes:
        assert self._file is not None
        self._file.seek(place.start)
        content = self._file.read(place.length)
        if not self._places:
            self._file.truncate(0)
        return content
