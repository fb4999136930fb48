"""`harmofl deploy follow`, at a site: the server's page of a run, in a browser on this machine.

A browser would need the site's key; this small server shows it in its place, and passes pages on to this machine alone.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harmofl.deployment.joining import enrollment_of
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.tls.address import Address
from harmofl.deployment.tls.requests import read_private_key, to_pem
from harmofl.errors import UsageError
from harmofl.reporting.live_server import POLICY

HOST = "127.0.0.1"
PAGES = ("/", "/content", "/picture", "/sample")
SECONDS = 30.0
LARGEST = 2**26
PASSED_ON = ("Content-Type",)
OWN = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
"""What a page of the server's may do in a browser here is not the server's to say."""


class Follower(ThreadingHTTPServer):
    """Passes the pages of a server on to this machine."""

    daemon_threads = True

    def __init__(self, kit: SiteKit, server_port: int, port: int = 0) -> None:
        self.server = Address(Address.parse(kit.federation.server).host, server_port)
        self.context = client_context(kit)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror or error}") from None

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://{HOST}:{self.server_port}/"

    def fetch(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Ask the server for a page, with this site's certificate."""
        connection = HTTPSConnection(self.server.host, self.server.port, timeout=SECONDS, context=self.context)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            kept = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
            return answer.status, kept, answer.read(LARGEST)
        finally:
            connection.close()


def client_context(kit: SiteKit) -> ssl.SSLContext:
    """TLS as this site, to the federation's server alone."""
    enrollment = enrollment_of(kit)
    certificate = kit.folder / enrollment.certificate
    if not certificate.exists():
        raise UsageError(f"{certificate}: this site has no certificate of the authority (`harmofl deploy join`)")
    context = ssl.create_default_context(cafile=str(kit.folder / enrollment.authority))
    key = to_pem(read_private_key(kit.folder / enrollment.key(kit.name)))
    handle, name = tempfile.mkstemp()  # readable by its owner alone; Python reads keys from files only
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
        context.load_cert_chain(certificate, name)
    finally:
        Path(name).unlink()
    return context


class Handler(BaseHTTPRequestHandler):
    """Answers GET for the pages that there are."""

    server: Follower
    server_version = "harmofl"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Pass a page on, or say that the server does not let us read."""
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in (HOST, "localhost"):
            self._send(403, {}, b"unknown host\n")
        elif urlsplit(self.path).path not in PAGES:
            self._send(404, {}, b"no such page\n")
        else:
            try:
                self._send(*self.server.fetch(self.path))
            except (OSError, HTTPException) as error:
                words = f"the server does not show its page to this site ({getattr(error, 'reason', '') or error})\n"
                self._send(502, {}, words.encode())

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        named = {"Content-Type": "text/plain; charset=utf-8", **headers, **OWN, "Cache-Control": "no-store"}
        for name, value in {**named, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: a page asks every few seconds."""
