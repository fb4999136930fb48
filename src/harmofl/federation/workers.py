"""Processes that train sites side by side on one machine. Messages reach them as they would reach other machines."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from harmofl import registry
from harmofl.displays.profiling import join, leave_events, part
from harmofl.errors import DiskError
from harmofl.federation.messages import Reply, Request, decode_reply, decode_request, encode
from harmofl.federation.transports import Clients
from harmofl.methods.method import Method
from harmofl.plugins import load_plugins
from harmofl.runs.folder import RunFolder
from harmofl.settings import Settings

SLOW_IMPORTS = ("monai.networks.nets", "monai.losses", "monai.transforms")
TRAINING_IMPORTS = ("torch._dynamo",)
"""What torch imports when the first optimizer is made, for about two CPU seconds; the server makes none."""
REPLY, STOP = b"reply", b"stop"
"""What a worker sends before its reply, or before the reason why no site of this machine can go on."""
LONGEST_KIND = 16
LONGEST_WAIT = 3600.0
"""Seconds of one look at the workers, as the system counts no longer than some weeks; another look follows."""


def worker_context() -> Any:
    """Processes that start from a clean one that has torch and MONAI in memory already, where there are such."""
    if os.name != "posix":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    ours = ("harmofl.federation.lean_worker", "harmofl.federation.workers")
    context.set_forkserver_preload([*ours, *SLOW_IMPORTS, *TRAINING_IMPORTS])
    with hold_interrupts():
        forkserver.ensure_running()
    return context


def code_to_carry(method: Method) -> bytes:
    """What worker processes need beside settings: the method, and what a script has registered."""
    return pickle.dumps((method, registry.entries_to_carry()))


class Worker:
    """A process that answers for sites, one request at a time, in the encoding that travels between machines."""

    def __init__(self, settings: Settings, method: Method, folder: Path, trained: Path | None = None) -> None:
        context, code = worker_context(), code_to_carry(method)
        self.connection, other_end = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(other_end, settings, code, folder, trained), daemon=True
        )
        with hold_interrupts(), hide_main_script(unless_in=code):
            self.process.start()
        other_end.close()
        self.known: set[str] = set()
        self.site: str | None = None
        self.deadline = 0.0
        self.largest: int | None = None
        """Bytes of a reply; None: any number."""

    def send(self, site: str, request: Request, timeout: float) -> None:
        """Give the worker something to do; if it is gone, `receive` says so."""
        self.known.add(site)
        self.site = site
        self.deadline = time.monotonic() + timeout
        with suppress(OSError):
            self.connection.send_bytes(site.encode())
            with part("messages"):
                content = encode(request)
            self.connection.send_bytes(content)

    def receive(self) -> Reply:
        """The answer, or what became of the worker; it is free again afterwards. DiskError if no site can go on."""
        site, self.site = self.site or "", None
        try:
            kind, content = self.connection.recv_bytes(LONGEST_KIND), self.connection.recv_bytes(self.largest)
            if kind == STOP:
                raise DiskError(content.decode())
            with part("messages"):
                return decode_reply(content)
        except (EOFError, OSError, ValueError) as error:
            reason = "its answer is no message, or larger than expected" if not is_end(error) else self._last_words()
            self.stop()
            return Reply(site, error=reason)

    def _last_words(self) -> str:
        self.process.join(timeout=5)
        return f"its worker process died (exit code {self.process.exitcode})"

    def give_up(self) -> Reply:
        """End the process in the middle of its work."""
        self.stop()
        return Reply(self.site or "", error="no answer within federation.timeout")

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Workers:
    """Several processes train sites side by side; results do not depend on their number."""

    def __init__(
        self, settings: Settings, method: Method, folder: Path, count: int, trained: Path | None = None
    ) -> None:
        self._sites = registry.tasks.find(settings.task).participants(method, settings.data)
        self._arguments = (settings, method, folder, trained)
        worker_context()  # its clean process imports what workers need ...
        with hold_interrupts():
            for name in SLOW_IMPORTS:  # ... while this one imports the same, for the server
                import_module(name)
        self._workers = [Worker(*self._arguments) for _ in range(count)]

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """Every site is always there."""
        return list(self._sites)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Keep every worker busy until all sites have answered; a worker that is too slow is replaced."""
        pending = sorted(requests)
        while pending or any(worker.site for worker in self._workers):
            for place, worker in enumerate(self._workers):
                if pending and worker.site is None:
                    free = worker if worker.process.is_alive() else self._replace(place)
                    site = next((site for site in pending if site in free.known), pending[0])
                    pending.remove(site)
                    free.send(site, requests[site], timeout)
            yield from self._receive_some()

    def _receive_some(self) -> Iterator[Reply]:
        busy = [worker for worker in self._workers if worker.site]
        nearest = min(worker.deadline for worker in busy) - time.monotonic()
        ready = wait([worker.connection for worker in busy], timeout=min(max(0.0, nearest), LONGEST_WAIT))
        for place, worker in enumerate(self._workers):
            if worker.connection in ready:
                reply = worker.receive()
            elif worker in busy and time.monotonic() >= worker.deadline:
                reply = worker.give_up()
            else:
                continue
            if not worker.process.is_alive():
                self._replace(place)
            yield reply

    def limit_replies(self, largest: int) -> None:
        """Refuse larger replies before they are read."""
        for worker in self._workers:
            worker.largest = largest

    def _replace(self, place: int) -> Worker:
        largest = self._workers[place].largest
        self._workers[place].stop()
        self._workers[place] = Worker(*self._arguments)
        self._workers[place].largest = largest
        return self._workers[place]

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.stop()


def is_end(error: Exception) -> bool:
    """Whether the other end of a pipe is gone; a message that is too large is another error of the same kind."""
    return isinstance(error, EOFError | ConnectionError) or (isinstance(error, OSError) and error.errno is not None)


def _serve(connection: Connection, settings: Settings, code: bytes, folder: Path, trained: Path | None) -> None:
    """A worker's life: answer requests until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(settings.federation.threads)
    load_plugins(settings.plugins.files, warn=False)  # before what is defined there is unpickled
    method, entries = pickle.loads(code)
    for entry in entries:
        registry.register(entry)
    clients = Clients(settings, method, folder, trained=trained)
    profile = RunFolder(folder).profile_parts
    join(profile)
    while True:
        try:
            site, received = connection.recv_bytes().decode(), connection.recv_bytes()
        except (EOFError, OSError):
            return
        with part("messages"):
            request = decode_request(received)
        try:
            reply = clients.answer(site, request)
            with part("messages"):
                kind, content = REPLY, encode(reply)
        except DiskError as error:
            kind, content = STOP, str(error).encode()
        leave_events(profile)
        connection.send_bytes(kind)
        connection.send_bytes(content)


def _die_with_parent() -> None:
    """Leave at once when the main process is killed, even in the middle of a round."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Start a process that never hears Ctrl-C, not even while it imports; this one hears it after the block.

    Other threads of this process, such as a display's, may take the signal, and Python then interrupts this one all
    the same: so it is also noted instead of raised. Raised within an import, it can get lost in a callback.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # it would let Ctrl-C through again if it started inside the block
    noted: list[Any] = []
    usual = signal.signal(signal.SIGINT, lambda *received: noted.append(received))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, usual)  # what has come by now is noted before
        if noted and callable(usual):
            usual(*noted[0])


@contextmanager
def hide_main_script(unless_in: bytes) -> Iterator[None]:
    """Keep a new process from running the user's script again, unless what it needs is defined there."""
    if b"__main__" in unless_in:
        yield
        return
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
