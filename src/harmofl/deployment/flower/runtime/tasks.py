"""The heartbeat of a process that works on one of Flower's tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
from flwr.supercore.runtime import RuntimeHttpClient

TROUBLE = (httpx.HTTPError, OSError)


@contextmanager
def heartbeat(client: RuntimeHttpClient, seconds: float = 8.0) -> Iterator[None]:
    """Report regularly that the task is being worked on. Flower's own sender would interrupt our process."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(seconds):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except TROUBLE:
                continue
            except RuntimeError:
                if not ended.is_set():  # else: the client was closed while a beat waited for a server that is gone
                    raise

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=1)
