"""The page of a run for people at sites: over TLS, to those whom `readers` in server.toml names, and to nobody else.

A reader shows the certificate of their site, as the site does itself. Reading is all that the page can do.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import Certificate, load_der_x509_certificate
from cryptography.x509.oid import NameOID

from harmofl.deployment.audit import Refusals, audit_log, write_entry
from harmofl.deployment.engine import find_engine
from harmofl.deployment.enrollment import Enrollment
from harmofl.deployment.kits import ServerKit
from harmofl.deployment.revocations import digest_of_key, key_digest
from harmofl.errors import UsageError
from harmofl.reporting.live_server import LiveServer

HANDSHAKE = 10.0
"""Seconds that somebody has to show a certificate."""
MOST_AT_ONCE = 32


class ReadersServer(LiveServer):
    """Serves a run's page to readers; who is one is looked up for each connection."""

    def __init__(self, kit: ServerKit, runs: Path, host: str, port: int) -> None:
        self._kit = kit
        self._refusals = Refusals(audit_log(kit.folder))
        self._context = server_context(kit.folder, enrollment_of(kit))
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._seen: set[str] = set()
        super().__init__(runs, host, port)

    @property
    def url(self) -> str:
        """Where `harmofl deploy follow` finds it."""
        return super().url.replace("http:", "https:", 1)

    def knows_host(self, named: str) -> bool:
        """Whoever has shown a certificate means this server."""
        return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Let a reader in; the handshake is this thread's, so that nobody waits for a slow one."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            secured = self._let_in(request, str(client_address[0]))
            if secured is None:
                self.shutdown_request(request)
            else:
                super().process_request_thread(secured, client_address)
        finally:
            self._places.release()

    def _let_in(self, request: socket.socket, where: str) -> ssl.SSLSocket | None:
        request.settimeout(HANDSHAKE)
        try:
            secured = self._context.wrap_socket(request, server_side=True)
        except (OSError, ValueError) as error:
            self._note(where, f"no reader's certificate ({getattr(error, 'reason', None) or type(error).__name__})")
            return None
        shown = load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        name = common_name(shown)
        reader = find_reader(self._kit.folder, name, shown)
        if reader is None:
            self._note(where, f"{name!r:.80} is no reader")
            self.shutdown_request(secured)
            return None
        if reader not in self._seen:
            self._seen.add(reader)
            write_entry(audit_log(self._kit.folder), who=reader, outcome="let in to watch")
        return secured

    def _note(self, where: str, reason: str) -> None:
        with suppress(OSError):  # a full disk is no reason to let somebody in
            self._refusals.note(where, reason)


def enrollment_of(kit: ServerKit) -> Enrollment:
    """How sites prove who they are."""
    engine = find_engine(kit.federation.engine)
    if engine.enrollment is None:
        raise UsageError(f"engine {engine.name!r}: its sites have no certificates to show")
    return engine.enrollment


def server_context(folder: Path, enrollment: Enrollment) -> ssl.SSLContext:
    """TLS as the server, for those with a certificate of the federation's authority."""
    authority = folder / enrollment.authority
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(authority.parent / "server.crt", authority.parent / "server.key")
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{authority.parent}: {error.strerror or error}") from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def common_name(certificate: Certificate) -> str:
    """Whom a certificate names."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def find_reader(folder: Path, name: str, shown: Certificate) -> str | None:
    """The reader of that name in a certificate: named in server.toml, in the federation, and not revoked."""
    try:
        kit = ServerKit.open(folder)
    except (UsageError, OSError):
        return None
    called = enrollment_of(kit).common_name
    found = (site for site in kit.settings.readers if site in kit.federation.sites and called(site) == name)
    return next((site for site in found if has_known_key(kit, site, shown)), None)


def has_known_key(kit: ServerKit, site: str, shown: Certificate) -> bool:
    """Whether a certificate is for the key by which the server knows a site, where it knows sites by keys.

    A site that was revoked and came back has another one: the certificate of the first is valid until it expires.
    """
    files = find_engine(kit.federation.engine).server_files([site])
    text = shown.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return all(key_digest(kit.folder / file) == digest_of_key(text) for file in files)
