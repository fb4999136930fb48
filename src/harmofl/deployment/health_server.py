"""`/health` and `/metrics` of a party, for programs on its own machine: read-only, on the loopback interface alone."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from harmofl.deployment.health import Health
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.logs import name_cause
from harmofl.deployment.prometheus import CONTENT_TYPE
from harmofl.errors import UsageError

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
OWN_NAMES = (HOST, "localhost")


@contextmanager
def serve_health(kit: ServerKit | SiteKit) -> Iterator[None]:
    """Answer while the block runs, if the party's settings name a port."""
    port = kit.settings.health_port
    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer((HOST, port), partial(Handler, Health(kit)))
    except OSError as error:
        raise UsageError(f"health_port = {port}: {error.strerror or error}") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="harmofl-health", daemon=True).start()
    logger.info("health and metrics: http://%s:%d/health and /metrics", HOST, port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers GET, and nothing else."""

    server_version = "harmofl"
    sys_version = ""
    timeout = 10

    def __init__(self, health: Health, *arguments: Any) -> None:
        self._health = health
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Send what was asked for."""
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in OWN_NAMES:  # a page elsewhere asks (DNS)
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "unknown host\n")
            return
        try:
            self._send(*self._answer(urlsplit(self.path).path))
        except Exception as error:  # the party goes on, whatever is wrong with its folder
            logger.warning("the health of this party cannot be told: %s", name_cause(error))
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{name_cause(error)}\n")

    def _answer(self, path: str) -> tuple[HTTPStatus, str, str]:
        if path == "/health":
            report = self._health.report()
            status = HTTPStatus.OK if report["ok"] else HTTPStatus.SERVICE_UNAVAILABLE
            return status, "application/json", json.dumps(report, indent=2) + "\n"
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE, self._health.metrics()
        return HTTPStatus.NOT_FOUND, "text/plain", "/health or /metrics\n"

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: it is asked every few seconds."""
