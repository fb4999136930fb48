"""A Transport over the relay to FLARE's server process."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from harmofl.deployment.engine import TOO_LATE, wait_for_sites
from harmofl.deployment.kits import ServerKit
from harmofl.deployment.nvflare.names import relay_socket
from harmofl.deployment.nvflare.relay import Relay, RelayError, open_relay
from harmofl.deployment.replies import LARGEST_REPLY, reply_of
from harmofl.errors import RunError
from harmofl.federation.messages import Reply, Request, encode

PATIENCE = 10.0
"""Seconds for answers that FLARE's server gives without asking a site."""

LONGEST_WAIT = 3600.0
"""Seconds of one wait for answers, as Python accepts only so many; another wait follows."""

Frame = tuple[dict[str, Any], bytes]
GONE: Frame = ({"gone": True}, b"")


class RelayTransport:
    """Reaches the sites through FLARE's server on the same machine."""

    def __init__(self, relay: Relay, sites: Sequence[str]) -> None:
        self._relay = relay
        self._sites = sorted(sites)
        self._numbers = itertools.count()
        self._present: queue.Queue[Frame] = queue.Queue()
        self._answers: dict[int, queue.Queue[Frame]] = {}
        self._largest = LARGEST_REPLY
        threading.Thread(target=self._listen, name="harmofl-relay", daemon=True).start()

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """All sites of the federation, once enough of them are connected."""
        return wait_for_sites(self._sites, self._find_connected, minimum, timeout)

    def limit_replies(self, largest: int) -> None:
        """Let FLARE's server refuse larger replies while they arrive."""
        self._largest = min(largest, LARGEST_REPLY)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Send each site its request; equal requests travel to FLARE's server once."""
        deadline = time.monotonic() + timeout
        waiting: dict[int, set[str]] = {}
        answers: queue.Queue[Frame] = queue.Queue()
        try:
            for data, sites in group_equal(requests):
                number = next(self._numbers)
                waiting[number], self._answers[number] = set(sites), answers
                wanted = {"do": "ask", "id": number, "sites": sites, "timeout": timeout, "largest": self._largest}
                self._send(wanted, data)
            yield from collect(answers, waiting, deadline, self._largest)
        finally:
            for number in waiting:
                self._answers.pop(number, None)
                with suppress(RunError):
                    self._send({"do": "forget", "id": number})

    def close(self) -> None:
        """End the connection, so that FLARE's server stops waiting for sites."""
        self._relay.close()

    def _find_connected(self) -> list[str]:
        self._send({"do": "sites"})
        try:
            header, _ = self._present.get(timeout=PATIENCE)
        except queue.Empty:
            raise RunError("NVIDIA FLARE's server does not answer") from None
        if "gone" in header:
            self._present.put(GONE)
            raise connection_lost()
        return [site for site in header["connected"] if site in self._sites]

    def _send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        try:
            self._relay.send(header, body)
        except OSError:
            raise connection_lost() from None

    def _listen(self) -> None:
        with suppress(OSError, EOFError, RelayError):
            while True:
                header, body = self._relay.receive()
                if "connected" in header:
                    self._present.put((header, body))
                elif (answers := self._answers.get(header.get("id", -1))) is not None:
                    answers.put((header, body))  # others are late answers to what nobody waits for any more
        self._present.put(GONE)
        for answers in list(self._answers.values()):
            answers.put(GONE)


def group_equal(requests: Mapping[str, Request]) -> Iterable[tuple[bytes, list[str]]]:
    """Return each distinct message, encoded, with the sites that it is for."""
    messages: dict[bytes, list[str]] = {}
    for site in sorted(requests):
        messages.setdefault(encode(requests[site]), []).append(site)
    return messages.items()


def collect(
    answers: queue.Queue[Frame], waiting: Mapping[int, set[str]], deadline: float, largest: int = LARGEST_REPLY
) -> Iterator[Reply]:
    """Yield one reply per site as they arrive, until time is up."""
    while any(waiting.values()):
        try:
            header, body = answers.get(timeout=min(max(0.0, deadline - time.monotonic()), LONGEST_WAIT))
        except queue.Empty:
            if time.monotonic() < deadline:
                continue
            yield from failures(waiting, TOO_LATE)
            return
        if "gone" in header:
            raise connection_lost()  # no site is to blame, so none is left out: the round is run again when resumed
        site = header["site"]
        if site in waiting[header["id"]]:
            waiting[header["id"]].remove(site)
            yield reply_of(site, header["error"] or body, largest)


def connection_lost() -> RunError:
    """Say what to do when FLARE's server is gone."""
    return RunError(
        "the connection to NVIDIA FLARE's server is lost. The last checkpoint is kept: restart the server "
        "(`harmofl deploy start`) unless it restarts itself, and continue with --resume"
    )


def failures(waiting: Mapping[int, set[str]], reason: str) -> Iterator[Reply]:
    """Yield a reply for each site that gave none."""
    for site in sorted(site for sites in waiting.values() for site in sites):
        yield Reply(site, error=reason)


@contextmanager
def connect(kit: ServerKit) -> Iterator[RelayTransport]:
    """Reach the sites for as long as a run lasts."""
    try:
        relay = open_relay(relay_socket(kit.folder))
        greeting, _ = relay.receive()
    except (OSError, EOFError, RelayError):
        raise RunError("NVIDIA FLARE's server is not running here: `harmofl deploy start` starts it") from None
    if "error" in greeting:
        relay.close()
        raise RunError(greeting["error"])
    transport = RelayTransport(relay, kit.federation.sites)
    try:
        yield transport
    finally:
        transport.close()
