"""A small web server for the pages of runs: it reads their folders, writes nothing, and answers GET only."""

from __future__ import annotations

import socket
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from harmofl.errors import UsageError
from harmofl.reporting.live_pages import LivePages

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")

POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'"
)


class LiveServer(ThreadingHTTPServer):
    """Serves one folder's pages."""

    daemon_threads = True

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder")
        self.host = host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), partial(Handler, LivePages(folder)))
        except OSError as error:
            raise UsageError(f"--host {host} --port {port}: {error.strerror or error}") from None

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_port}/"

    def knows_host(self, named: str) -> bool:
        """Whether a request means this server: a name that others point here (DNS rebinding) does not."""
        name = urlsplit(f"//{named}").hostname or ""
        return self.host in EVERYWHERE or name == self.host or (self.host in LOOPBACK and name in LOOPBACK)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: LiveServer
    server_version = "harmofl"
    sys_version = ""
    timeout = 30

    def __init__(self, pages: LivePages, *arguments: Any) -> None:
        self._pages = pages
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Send a page, what changes on it, or a picture."""
        if not self.server.knows_host(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"unknown host\n")
            return
        address = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(address.query).items()}
        try:
            kind, body = self._answer(address.path, asked)
        except (UsageError, ValueError, OSError) as error:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"{error}\n".encode())
        else:
            self._send(HTTPStatus.OK, kind, body)

    def _answer(self, path: str, asked: dict[str, str]) -> tuple[str, bytes]:
        run = asked.get("run", "")
        match path:
            case "/":
                return "text/html; charset=utf-8", self._pages.page(run).encode()
            case "/content":
                return "text/html; charset=utf-8", self._pages.content(run).encode()
            case "/picture":
                return "image/png", self._pages.picture(run, int(asked.get("number", "")))
            case "/sample":
                return "image/png", self._pages.sample(run, asked.get("site", ""))
        raise UsageError(f"{path}: no such page")

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: a page asks every few seconds."""
