"""A site's side: a SuperNode that brings messages, and this process, which answers them."""

from __future__ import annotations

import logging
import secrets
import threading
import time

import httpx

from harmofl.deployment.absence import Absence, explain_absence
from harmofl.deployment.flower.children import Child, free_port, prepare_process
from harmofl.deployment.flower.runtime.inbox import Answer, Inbox
from harmofl.deployment.kits import SiteKit, SiteSettings
from harmofl.deployment.logs import CLOCK, hint_at_clock, name_cause
from harmofl.deployment.memory import MEGABYTE, memory_of
from harmofl.deployment.processes import keep_running, stoppable
from harmofl.deployment.status import SERVER, note_status
from harmofl.files import PRIVATE, write_whole

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.1
OWN_MEMORY = 2**30
"""Bytes that a SuperNode may take beside messages."""
TIMES = 4
"""A message and its answer lie in a SuperNode, each while the other comes or goes, and once more as it is unpacked."""


def join(kit: SiteKit, answer: Answer) -> None:
    """Answer the server's messages until we are stopped. Code that Flower brings along is never looked at."""
    prepare_process()
    node = Node(kit)
    try:
        with stoppable():
            node.start()
            while True:
                if not node.answer_one(answer):
                    time.sleep(LOOK_EVERY)
    finally:
        node.stop()


class Node:
    """A SuperNode, started again whenever it ends, and what it brings."""

    def __init__(self, kit: SiteKit) -> None:
        self._kit = kit
        self._engine = kit.folder / "engine"
        self._stopped = threading.Event()
        self._absence = Absence(kit)
        self._child: Child | None = None
        self._inbox: Inbox | None = None
        self._keeper = threading.Thread(target=keep_running, args=(self._run_once, self._stopped), daemon=True)

    def start(self) -> None:
        """Start it, in the background."""
        self._engine.mkdir(parents=True, exist_ok=True)
        logger.info("%s: looking for the server at %s", self._kit.name, self._kit.federation.server)
        self._keeper.start()

    def stop(self) -> None:
        """End it, which lets the server know at once that this site is gone."""
        self._stopped.set()
        if self._child is not None:
            self._child.stop()
        note_status(self._kit.folder, [], "the site was stopped")
        (self._engine / "secret").unlink(missing_ok=True)

    def answer_one(self, answer: Answer) -> bool:
        """Answer one message if there is one; whatever goes wrong with it, there will be others."""
        inbox = self._inbox
        try:
            return inbox is not None and inbox.answer_one(answer)
        except httpx.ConnectError:  # it is being started, or ended just now
            return False
        except Exception as error:
            logger.warning("%s: a message could not be answered (%s)", self._kit.name, type(error).__name__)
            self._restart()
            return False

    def _restart(self) -> None:
        """End the SuperNode, which would wait for the rest of an answer for ever; another one is started."""
        if self._child is not None:
            self._child.process.terminate()
            self._inbox = None

    def _run_once(self) -> str:
        """Run the SuperNode to its end; return the reason."""
        try:
            child = self._start_child()
            child.process.wait()
            reason = self._explain_end(child)
        except OSError as error:  # no memory, no space: it may pass
            reason = name_cause(error)
        finally:
            self._inbox = None
        note_status(self._kit.folder, [], reason)
        return f"{self._kit.name}: not connected: {reason}"

    def _explain_end(self, child: Child) -> str:
        """Why the SuperNode ended: what is wrong with certificates, clock or network, or its own last words."""
        if self._stopped.is_set():
            return "it was stopped"
        note_status(self._kit.folder, [], "the reason is being looked for")
        return explain_absence(self._kit) or hint_at_clock(child.last_words())

    def _start_child(self) -> Child:
        """Start a SuperNode, with a new port and a new secret each time: the last ones are of no use to anybody."""
        port, secret = free_port(), secrets.token_bytes(32)
        write_whole(self._engine / "secret", secret, PRIVATE)
        self._child = Child("supernode", self._arguments(port), self._engine, self._notice)
        self._inbox = Inbox(f"127.0.0.1:{port}", secret)
        if self._stopped.is_set():  # between its start and now
            self._child.stop()
        return self._child

    def _arguments(self, port: int) -> list[str]:
        kit = self._kit
        key = str(kit.folder / "keys" / kit.name)
        return [
            key,
            str(most_memory(kit.settings)),
            *("--isolation", "process", "--superexec-auth-secret-file", str(self._engine / "secret")),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--superlink", kit.federation.server),
            *("--root-certificates", str(kit.folder / "tls" / "ca.crt")),
            *("--auth-supernode-private-key", key),
        ]

    def _notice(self, line: str) -> None:
        if "SuperNode ID" in line or "Connection successful" in line:
            logger.info("%s: connected", self._kit.name)
            note_status(self._kit.folder, [SERVER])
        elif "Connection attempt failed" in line:
            logger.warning("%s: the server cannot be reached; trying again", self._kit.name)
            note_status(self._kit.folder, [], "the server cannot be reached")
            self._absence.explain()
        elif hint_at_clock(line) != line:
            logger.warning("%s: %s", self._kit.name, CLOCK)


def most_memory(own: SiteSettings) -> int:
    """The bytes that a SuperNode may have: a server that sends on and on does not fill this machine."""
    return min(OWN_MEMORY + TIMES * own.largest_message_mb * MEGABYTE, memory_of("cpu"))
