"""A Flower run's messages to sites and back, by what any server application may use of Flower."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import httpx
from flwr.app import Error, Message
from flwr.serverapp import Grid

from harmofl.deployment.flower.messages import pack, unpack, with_nonce

WENT_AWAY = "went away during the round"
UNAUTHORIZED = 401
NODE_UNAVAILABLE = 5
"""Flower's number for the error that a node has gone."""
QUERY = "query"


@dataclass(frozen=True)
class Connection:
    """A connected site, and since when: one that was restarted meanwhile has forgotten what it was asked."""

    node: int
    since: str


class Mailbox:
    """Messages of a run to sites and back."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def connections(self) -> dict[bytes, Connection]:
        """Who is connected, by public key."""
        nodes = self._grid.get_nodes()
        return {node.public_key: Connection(node.node_id, node.last_activated_at) for node in nodes}

    def nodes(self) -> dict[Connection, str]:
        """Who is connected, with the name under which the SuperLink knows the node, if it was given one."""
        nodes = self._grid.get_nodes()
        return {Connection(node.node_id, node.last_activated_at): node.name for node in nodes}

    def post(self, nodes: Iterable[int], data: bytes, seconds: float, kind: str = QUERY) -> list[str]:
        """Send the same bytes to each node, to expire after so many seconds; return the messages' names.

        Nobody else can guess a name. It is empty if the message was not taken, as that site has just been removed.
        All nodes learn of their messages before the bytes are sent, once for all of them.
        """
        payload = pack(data)
        messages = [Message(with_nonce(payload, secrets.token_hex(16)), node, kind, ttl=seconds) for node in nodes]
        taken = [str(identifier or "") for identifier in self._grid.push_messages(messages)]
        return taken or [""] * len(messages)

    def fetch(self, identifier: str) -> bytes | str | None:
        """Return the bytes that answer a message, or why there are none; None as long as there is neither."""
        for message in self._grid.pull_messages([identifier]):
            if message.metadata.reply_to_message_id == identifier:
                return explain(message.error) if message.has_error() else unpack(message.content)
        return None


def is_lost(error: Exception) -> bool:
    """Whether the SuperLink is gone, or no longer knows our run, as after its restart."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == UNAUTHORIZED
    return isinstance(error, httpx.TransportError)


def explain(error: Error) -> str:
    """The reason for an error, as Flower, or a site in its name, gives it."""
    if error.code == NODE_UNAVAILABLE:
        return WENT_AWAY
    return f"Flower's error {error.code}: {error.reason}"[:200]
