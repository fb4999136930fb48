"""Requests to sites and their replies over Flower's messages, whoever opened the run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harmofl.deployment.allowances import write_limit
from harmofl.deployment.engine import NOT_CONNECTED, TOO_LATE, wait_for_sites
from harmofl.deployment.flower.mailbox import WENT_AWAY, Connection, is_lost
from harmofl.deployment.replies import LARGEST_REPLY, reply_of
from harmofl.federation.messages import Reply, Request, encode

LOOK_EVERY = 0.5
LEEWAY = 30.0
"""Seconds for which Flower keeps a message longer than we wait, so that it is we who say that a site is late."""
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 1.0
AT_ONCE = 50
"""Sites that are told together that there is something for them."""


class Post(Protocol):
    """What carries messages to connected sites, which are known by a key, or by their names."""

    def connections(self) -> Mapping[Any, Connection]:
        """Who is connected, by what a site is known by."""

    def post(self, nodes: Iterable[int], data: bytes, seconds: float) -> Sequence[str]:
        """Send the same bytes to each node; return the messages' names, empty for those that were not taken."""

    def fetch(self, identifier: str) -> bytes | str | None:
        """Return the bytes that answer a message, or why there are none; None as long as there is neither."""


class FlowerTransport:
    """The sites of a federation, each known by its key, or by another thing that tells it from all others."""

    def __init__(
        self, mailbox: Post, keys: Mapping[str, Hashable], largest: int = LARGEST_REPLY, limit: Path | None = None
    ) -> None:
        """`limit`: the file by which the SuperLink learns how large replies may be."""
        self._mailbox = mailbox
        self._keys = dict(keys)
        self._largest = largest
        self._limit = limit

    def limit_replies(self, largest: int) -> None:
        """Let the SuperLink refuse larger replies while they arrive."""
        self._largest = min(largest, LARGEST_REPLY)
        if self._limit is not None:
            write_limit(self._limit, self._largest)

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """All sites, as soon as so many are connected."""
        return wait_for_sites(self._keys, self._find_connected, minimum, timeout)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Send each site its request; yield replies as they come, one per site."""
        exchange = Exchange(self._mailbox, timeout)
        try:
            here = self._find_connected()
            for site in sorted(requests.keys() - here.keys()):
                yield Reply(site, error=NOT_CONNECTED)
            for sites, data in encode_together({site: requests[site] for site in requests.keys() & here.keys()}):
                exchange.send({site: here[site] for site in sites}, data)
            for site, outcome in exchange.outcomes(self._find_connected):
                yield reply_of(site, outcome, self._largest)
        finally:
            exchange.ended.set()

    def _find_connected(self) -> dict[str, Connection]:
        connections = self._mailbox.connections()
        return {site: connections[key] for site, key in self._keys.items() if key in connections}


def encode_together(requests: Mapping[str, Request]) -> Iterator[tuple[list[str], bytes]]:
    """Sites in the order of their names, neighbours whose requests are equal together, with the bytes to send."""
    together: list[str] = []
    before = b""
    for site in sorted(requests):
        data = encode(requests[site])
        if together and (data != before or len(together) == AT_ONCE):
            yield together, before
            together = []
        together.append(site)
        before = data
    if together:
        yield together, before


@dataclass
class Exchange:
    """The requests of one round that are under way; a site's outcome is the bytes that it answered, or a reason."""

    mailbox: Post
    timeout: float
    ended: threading.Event = field(default_factory=threading.Event)
    _waiting: dict[str, Connection] = field(default_factory=dict)
    _answers: queue.SimpleQueue[tuple[str, bytes | str | Exception]] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.timeout

    def send(self, sites: Mapping[str, Connection], data: bytes) -> None:
        """Send the same bytes to some sites. Flower stores equal parts of messages once, however many they are for."""
        nodes = [connection.node for connection in sites.values()]
        identifiers = self.mailbox.post(nodes, data, self.timeout + LEEWAY)
        self._waiting.update(sites)
        for site, identifier in zip(sites, identifiers, strict=True):
            if identifier:
                threading.Thread(target=self._fetch, args=(site, identifier), daemon=True).start()
            else:
                self._answers.put((site, NOT_CONNECTED))

    def outcomes(self, connected: Callable[[], Mapping[str, Connection]]) -> Iterator[tuple[str, bytes | str]]:
        """Each site's outcome, as soon as it is known."""
        while self._waiting:
            try:
                site, outcome = self._answers.get(timeout=LOOK_EVERY)
            except queue.Empty:
                yield from self._give_up(connected())
                continue
            if isinstance(outcome, Exception):
                raise outcome
            if self._waiting.pop(site, None) is not None:
                yield site, outcome

    def _give_up(self, here: Mapping[str, Connection]) -> Iterator[tuple[str, str]]:
        late = time.monotonic() > self._deadline
        for site, connection in list(self._waiting.items()):
            if late or here.get(site) != connection:  # a site that was restarted has forgotten the request
                del self._waiting[site]
                yield site, TOO_LATE if late else WENT_AWAY

    def _fetch(self, site: str, identifier: str) -> None:
        """Wait for one answer, in a thread of its own: a site that sends slowly holds up no other's."""
        wait = SHORTEST_WAIT
        while not self.ended.wait(wait):
            wait = min(wait * 1.1, LONGEST_WAIT)
            outcome = self._look_for_answer(identifier)
            if outcome is not None:
                self._answers.put((site, outcome))
                return

    def _look_for_answer(self, identifier: str) -> bytes | str | Exception | None:
        try:
            return self.mailbox.fetch(identifier)
        except Exception as error:
            if is_lost(error):
                return error
            return f"its answer cannot be read ({type(error).__name__})"  # what its bytes made of Flower's reading
