"""Which connected node answers for which site: each node is asked once, and says its site's name."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from harmofl.deployment.flower.mailbox import QUERY, Connection, Mailbox
from harmofl.federation.checks import to_plain_text

logger = logging.getLogger(__name__)

HELLO = "hello"
PATIENCE = 600.0
"""Seconds within which a node must say its name: Flower starts a process for it."""
LONGEST_NAME = 63


@dataclass
class Asked:
    """A node that was asked for its name: by this message, until then."""

    message: str
    until: float


class Roster:
    """Carries messages to sites, known by the names that their nodes say."""

    def __init__(self, mailbox: Mailbox, sites: Collection[str]) -> None:
        """`sites`: those that may take part."""
        self._mailbox = mailbox
        self._sites = frozenset(sites)
        self._asked: dict[Connection, Asked] = {}
        self._names: dict[Connection, str] = {}

    def connections(self) -> dict[str, Connection]:
        """The nodes of sites that are connected and have said their names; new ones are asked, nobody is waited for."""
        nodes = self._mailbox.nodes()
        self._names = {node: name for node, name in self._names.items() if node in nodes}
        self._asked = {node: asked for node, asked in self._asked.items() if node in nodes}
        for node in nodes.keys() - self._names.keys():
            self._ask(node) if node not in self._asked else self._look(node, nodes)
        return {name: node for node, name in self._names.items() if name}

    def post(self, nodes: Iterable[int], data: bytes, seconds: float) -> list[str]:
        """Send the same bytes to each node."""
        return self._mailbox.post(nodes, data, seconds)

    def fetch(self, identifier: str) -> bytes | str | None:
        """Return the bytes that answer a message, or why there are none; None as long as there is neither."""
        return self._mailbox.fetch(identifier)

    def _ask(self, node: Connection) -> None:
        [message] = self._mailbox.post([node.node], b"", PATIENCE, kind=f"{QUERY}.{HELLO}")
        self._asked[node] = Asked(message, time.monotonic() + PATIENCE)

    def _look(self, node: Connection, nodes: dict[Connection, str]) -> None:
        """See whether a node has said its name; one that cannot be used has none, and is not asked again."""
        asked = self._asked[node]
        said = self._mailbox.fetch(asked.message) if asked.message else "it was not reached"
        if said is None and time.monotonic() < asked.until:
            return
        name = said.decode("ascii", "replace")[:LONGEST_NAME] if isinstance(said, bytes) else ""
        reason = self._refusal(node, name, nodes) if name else said or "it did not say its name"
        self._names[node] = "" if reason else name
        if reason:
            logger.warning("node %d takes no part: %s", node.node, to_plain_text(str(reason)))

    def _refusal(self, node: Connection, name: str, nodes: dict[Connection, str]) -> str:
        """Why a node may not answer for a site; the name that the SuperLink gave a node is that node's alone."""
        if name not in self._sites:
            return f"it is {name!r}, and this run is for {', '.join(sorted(self._sites))}"
        if nodes[node] != name and name in nodes.values():
            return f"it says that it is {name!r}, and the SuperLink knows another node by this name"
        if name in self._names.values():
            return f"it says that it is {name!r}, and so does another node"
        return ""
