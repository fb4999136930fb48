"""A hospital's end: the component that answers requests inside FLARE's client process."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from harmofl.deployment.absence import Absence, explain_absence
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.memory import MEGABYTE
from harmofl.deployment.nvflare import runtime
from harmofl.deployment.nvflare.arrivals import Arrivals
from harmofl.deployment.nvflare.names import KIT_VARIABLE
from harmofl.deployment.participant import Participant
from harmofl.deployment.status import SERVER, note_status
from harmofl.federation.messages import Reply, encode
from harmofl.federation.workers import SLOW_IMPORTS

logger = logging.getLogger(__name__)

RECONNECT = 10
"""Seconds at most between two attempts to reach the server."""
TWICE = 2
"""A message that was given up on its way counts for a while beside the next one."""
PATIENCE = 20.0
"""Seconds after which a site says that the server has not let it in."""


class SiteDesk(FLComponent):  # type: ignore[misc]  # FLARE has no types
    """Answers one request after the other; FLARE makes one when its client starts."""

    def __init__(self) -> None:
        super().__init__()
        runtime.reconnect_within(RECONNECT)
        self._kit = SiteKit.open(Path(os.environ[KIT_VARIABLE]))
        self._absence = Absence(self._kit)
        self._queue = RequestQueue(Participant(self._kit))
        self._registered = threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Before the client registers, close every way in but ours; what opens later is closed later."""
        engine = fl_ctx.get_engine()
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            arrivals = Arrivals(TWICE * self._kit.settings.largest_message_mb * MEGABYTE)
            runtime.guard_site(engine.get_cell(), arrivals.admit)
            runtime.answer_with(engine.get_cell(), self._queue.work, arrivals.end)
            runtime.note_server_connection(engine.get_cell(), self._note_connection)
            threading.Thread(target=self._warn_while_waiting, daemon=True).start()
        elif event_type == EventType.SYSTEM_START:
            runtime.close_inner_port(engine.get_cell())
            runtime.remove_admin_commands(engine)
            self._registered.set()
            note_status(self._kit.folder, [SERVER])
            logger.info("registered with the server")

    def _note_connection(self, there: bool) -> None:
        logger.info("connected to the server" if there else "the server is gone; trying again")
        if self._registered.is_set():
            note_status(self._kit.folder, [SERVER] if there else [], "" if there else "the server is gone")
        if not there:
            self._absence.explain()

    def _warn_while_waiting(self) -> None:
        while not self._registered.wait(PATIENCE):
            reason = explain_absence(self._kit) or "`harmofl deploy check` may say why"
            logger.warning("the server has not let this site in yet: %s", reason)
            note_status(self._kit.folder, [], reason)


class RequestQueue:
    """Requests wait here; of those that waited, only the newest is answered, as nobody waits for the others."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._lock = threading.Lock()
        self._waiting: tuple[int, bytes] = (0, b"")
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="harmofl")
        for name in SLOW_IMPORTS:  # while the client registers, so that the first round does not wait for them
            self._worker.submit(import_module, name)

    def work(self, data: bytes) -> Future[bytes]:
        """Answer a request when its turn comes; of those that wait, only the newest lies in memory."""
        with self._lock:
            number = self._waiting[0] + 1
            self._waiting = number, data
        return self._worker.submit(self._answer, number)

    def _answer(self, number: int) -> bytes:
        with self._lock:
            newest, data = self._waiting
            if number == newest:
                self._waiting = newest, b""
        if number != newest:
            return encode(Reply(self._participant.kit.name, error="a newer request came while this one waited"))
        return self._participant.answer(data)
