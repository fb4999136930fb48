"""The server's end, inside FLARE's server process: it passes requests from `harmofl deploy run` on to the sites."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from harmofl.deployment.allowances import Allowances
from harmofl.deployment.audit import Refusals, audit_log
from harmofl.deployment.engine import NOT_CONNECTED
from harmofl.deployment.kits import ServerKit
from harmofl.deployment.nvflare import runtime
from harmofl.deployment.nvflare.names import KIT_VARIABLE, client_name, relay_socket
from harmofl.deployment.nvflare.relay import Relay, RelayError, listen
from harmofl.deployment.replies import LARGEST_REPLY
from harmofl.deployment.status import note_status
from harmofl.errors import UsageError

logger = logging.getLogger(__name__)

LOOK_EVERY = 2.0
"""Seconds between two looks at who is connected."""
FRESH = 1.0
"""Seconds after which the federation's file is read again."""
TIMES = 3
"""An answer counts when it says how long it is, and with its parts; a part that was lost is sent again, and counts
again."""
GRACE = 60.0
"""Seconds that a request outlives the run's own timeout, as only the run decides when time is up."""


class ServerDesk(FLComponent):  # type: ignore[misc]  # FLARE has no types
    """Opens a socket for runs on this machine; FLARE makes one when its server starts."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(os.environ[KIT_VARIABLE])
        self._members = Members(self._folder)
        self._allowances = Allowances()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Let in only sites of the federation before anything else happens; then wait for runs."""
        engine = fl_ctx.get_engine()
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._presence = runtime.Presence(engine.get_cell(), self._members.log)
            may_send = self._allowances.spend
            note = Refusals(audit_log(self._folder)).note
            runtime.guard_server(engine.get_cell(), self._members.clients, self._presence.hear, may_send, note)
            runtime.close_inner_port(engine.get_cell())
        elif event_type == EventType.SYSTEM_START:
            sites = ConnectedSites(engine, self._members.names, self._presence, self._allowances)
            desk = Desk(sites, listen(relay_socket(self._folder)))
            threading.Thread(target=desk.serve, name="harmofl-relay", daemon=True).start()
            watch = threading.Thread(target=self._note_connected, args=(sites,), name="harmofl-status", daemon=True)
            watch.start()
            logger.info("the server is ready")

    def _note_connected(self, sites: ConnectedSites) -> None:
        while True:
            note_status(self._folder, sites.connected())
            time.sleep(LOOK_EVERY)


class Members:
    """The federation's sites as its file names them now: adding or removing one needs no restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_at = 0.0
        self._names: Sequence[str] = ()
        self.names()

    def names(self) -> Sequence[str]:
        """The sites in the federation; a file that cannot be read changes nothing."""
        if time.monotonic() - self._read_at > FRESH:
            try:
                self._names = ServerKit.open(self._folder).federation.sites
            except (UsageError, OSError):
                if not self._names:
                    raise
                logger.warning("federation.toml cannot be read; the sites stay as they were")
            self._read_at = time.monotonic()
        return self._names

    def clients(self) -> set[str]:
        """The sites under FLARE's names for them."""
        return set(map(client_name, self.names()))

    def log(self, client: str, what: str) -> None:
        """Log what happened to a site, under its own name."""
        for site in self.names():
            if client_name(site) == client:
                logger.info("%s %s", site, what)


@dataclass(frozen=True)
class ConnectedSites:
    """The federation's sites as FLARE's server knows them."""

    engine: Any
    names: Callable[[], Sequence[str]]
    presence: runtime.Presence
    allowances: Allowances = field(default_factory=Allowances)

    def token(self, site: str) -> str | None:
        """Identify a site's current registration, if it is present and still in the federation."""
        if site not in self.names():
            return None
        return self.presence.token(self.engine.get_client_from_name(client_name(site)))

    def connected(self) -> list[str]:
        """The sites that are present."""
        return [site for site in self.names() if self.token(site)]

    def ask(
        self, site: str, data: bytes, timeout: float, over: threading.Event, largest: int = LARGEST_REPLY
    ) -> runtime.Outcome:
        """Ask one site, until it answers, goes away, or the run no longer waits; `largest`: bytes of its answer."""
        token = self.token(site)
        if token is None:
            return runtime.Outcome(error=NOT_CONNECTED)
        waiting = SiteGone(self, site, token, over)
        self.allowances.grant(client_name(site), TIMES * largest)
        return runtime.ask(self.engine.get_cell(), client_name(site), data, timeout, waiting)


@dataclass(frozen=True)
class SiteGone:
    """A signal to stop waiting: the site is gone, even if it has come back since, or nobody waits any more."""

    sites: ConnectedSites
    site: str
    token: str
    over: threading.Event

    @property
    def triggered(self) -> bool:
        """Whether to stop waiting."""
        return self.over.is_set() or self.sites.token(self.site) != self.token


@dataclass
class Desk:
    """Serves one run at a time; when its connection ends, in whatever way, nobody waits for its sites any more."""

    sites: ConnectedSites
    listener: socket.socket
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        """Accept connections until the process ends."""
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._attend, args=(Relay(connection),), daemon=True).start()

    def _attend(self, relay: Relay) -> None:
        try:
            if not self._busy.acquire(timeout=5):  # the previous run may have ended a moment ago
                relay.send({"error": "another run is using this federation"})
                return
            try:
                relay.send({"ready": True})
                Visit(self.sites, relay).attend()
            finally:
                self._busy.release()
        except (OSError, EOFError):
            pass  # it has left, as every run does
        except RelayError as error:
            logger.warning("a connection was ended: %s", error)
        finally:
            relay.close()


@dataclass
class Visit:
    """One run's connection."""

    sites: ConnectedSites
    relay: Relay
    _asked: dict[int, threading.Event] = field(default_factory=dict)

    def attend(self) -> None:
        """Do what the run says until it leaves."""
        try:
            while True:
                header, body = self.relay.receive()
                self._handle(header, body)
        finally:
            for over in self._asked.values():
                over.set()

    def _handle(self, header: dict[str, Any], body: bytes) -> None:
        match header:
            case {"do": "sites"}:
                self.relay.send({"connected": self.sites.connected()})
            case {
                "do": "ask",
                "id": int(number),
                "sites": list(sites),
                "timeout": int() | float() as timeout,
                "largest": int(largest),
            }:
                over = self._asked[number] = threading.Event()
                for site in sites:
                    arguments = (number, str(site), body, timeout + GRACE, over, largest)
                    threading.Thread(target=self._ask, args=arguments, daemon=True).start()
            case {"do": "forget", "id": int(number)}:
                self._asked.pop(number, threading.Event()).set()
            case _:
                raise RelayError("a frame that no run sends")

    def _ask(self, number: int, site: str, body: bytes, timeout: float, over: threading.Event, largest: int) -> None:
        try:
            outcome = self.sites.ask(site, body, timeout, over, largest)
        except Exception as error:
            logger.exception("asking %s failed", site)
            outcome = runtime.Outcome(error=f"NVIDIA FLARE failed ({type(error).__name__})")
        if not over.is_set():
            with suppress(OSError):
                self.relay.send({"id": number, "site": site, "error": outcome.error}, outcome.data)
