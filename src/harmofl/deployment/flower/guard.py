"""Who may use what of the server's one port: sites the fleet's paths, and only the operator all others.

Flower answers sites, operators and applications on one port, and asks operators for nothing: whoever reaches the
port could register a site, stop a run or read its log. It reads a request before it looks at its key, and a key signs
nothing but the time. This guard stands in front of all that; it imports no Flower.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import load_pem_x509_certificate

from harmofl.deployment.flower.identities import public_text

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Note = Callable[[str, str], None]
Known = Callable[[], Mapping[bytes, ec.EllipticCurvePublicKey]]
REFUSED = (400, 401, 403, 413)
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = re.compile(r"/v1/fleet/[a-z-]+")
"""Everything that sites need, and all that a reverse proxy may forward."""

OPERATOR = "x-harmofl-operator"
"""The header by which the operator proves to know the server's secret."""

LARGEST_BODY = 8 * 2**20
"""Of one request: messages travel in parts of 5 MiB, so a larger body is not part of one."""

PEER = "harmofl-peer"
"""Where a connection's state tells which key it has shown; None if a reverse proxy has made it."""

CERTIFICATE = b"x-harmofl-certificate"
"""The header in which a reverse proxy tells the certificate that a site showed in the TLS handshake, as escaped PEM."""

PUBLIC_KEY, TIMESTAMP, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
"""Flower's headers: a site's key, the time, and the time signed with the key."""

ONCE = {OPERATOR.encode(), CERTIFICATE, PUBLIC_KEY, TIMESTAMP, SIGNATURE, b"content-length"}
"""Headers that stand in a request once: of two, Flower would read the first, and this guard the last."""

READ_WITHIN = 120.0
"""Seconds for a whole body."""

LIMIT = "largest-reply"
"""The file, beside the server's secret, in which a run says how large a reply may be."""


def operator_key(secret: bytes) -> str:
    """Compute the content of the operator's header; the secret itself never travels."""
    return hmac.new(secret, b"harmofl operator", hashlib.sha256).hexdigest()


class Guard:
    """Forwards what is allowed to an application, and answers the rest itself."""

    def __init__(
        self, application: Application, secret: bytes, known: Known, note: Note = lambda who, reason: None
    ) -> None:
        """`known`: the keys of those who are let in. `note`: writes down who was refused, and why."""
        self._application = application
        self._known = known
        self._key = operator_key(secret).encode()
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request as an ASGI application."""
        refusal = self._refusal(scope)
        if refusal is None:
            await self._application(scope, whole_and_in_time(scope, receive), self._watch(scope, send))
            return
        self._note_refusal(scope, refusal)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": refusal, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _watch(self, scope: Scope, send: Send) -> Send:
        """The same `send`, which notes when the application behind refuses somebody: a failed login."""

        async def watched(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] in REFUSED:
                self._note_refusal(scope, message["status"])
            await send(message)

        return watched

    def _note_refusal(self, scope: Scope, status: int) -> None:
        who = (scope.get("client") or ["unknown"])[0]
        with suppress(OSError):  # a full disk is no reason to let somebody in
            self._note(str(who), f"{status} at the door")

    def _refusal(self, scope: Scope) -> int | None:
        if scope["type"] == "lifespan":
            return None
        if scope["type"] != "http":
            return 404
        headers = dict(scope["headers"])
        if any(name in ONCE for name, times in Counter(name for name, _ in scope["headers"]).items() if times > 1):
            return 400
        if not FLEET.fullmatch(scope["path"]):
            allowed = hmac.compare_digest(headers.get(OPERATOR.encode(), b""), self._key)
            return None if allowed else 404  # as if there were nothing
        return self._key_refusal(scope, headers) or body_refusal(headers)

    def _key_refusal(self, scope: Scope, headers: Mapping[bytes, bytes]) -> int | None:
        """Whose key a request names is decided before its body: it is the one that its connection has shown.

        Behind a proxy, which has the connection, it must have signed, too: others on this machine could write headers.
        """
        try:
            named = b64decode(headers.get(PUBLIC_KEY, b""), validate=True)
        except ValueError:
            return 401
        key, peer = self._known().get(named), scope.get("state", {}).get(PEER)
        if key is None or named != (shown_to_proxy(headers) if peer is None else peer):
            return 401
        return None if peer is not None or has_signed(key, headers) else 401


def shown_to_proxy(headers: Mapping[bytes, bytes]) -> bytes:
    """The key of the certificate that a reverse proxy was shown, as Flower writes it; empty if there is none."""
    try:
        key = load_pem_x509_certificate(unquote_to_bytes(headers.get(CERTIFICATE, b""))).public_key()
    except (ValueError, UnsupportedAlgorithm):
        return b""
    return public_text(key) if isinstance(key, ec.EllipticCurvePublicKey) else b""


def has_signed(key: ec.EllipticCurvePublicKey, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a key has signed the time of a request; whether this time is now, Flower asks."""
    try:
        signature = b64decode(headers.get(SIGNATURE, b""), validate=True)
        key.verify(signature, headers.get(TIMESTAMP, b""), ec.ECDSA(hashes.SHA256()))
    except (ValueError, InvalidSignature):
        return False
    return True


def whole_and_in_time(scope: Scope, receive: Receive) -> Receive:
    """The same `receive`, which gives a body in one piece, and for which whoever does not send it in time has gone.

    Flower's application hands every piece that it receives from one layer to the next, by tasks of its own: that took
    more than half of a server's time. It wants the whole body in any case.
    """
    waiting, deadline = scope["type"] == "http", asyncio.get_running_loop().time() + READ_WITHIN

    async def receive_whole() -> MutableMapping[str, Any]:
        nonlocal waiting
        if not waiting:
            return await receive()
        waiting, pieces, more = False, [], True
        try:
            async with asyncio.timeout_at(deadline):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        return message
                    pieces.append(message.get("body", b""))
                    more = bool(message.get("more_body"))
        except TimeoutError:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"".join(pieces), "more_body": False}

    return receive_whole


def body_refusal(headers: MutableMapping[bytes, bytes]) -> int | None:
    """Return the status that refuses a body of unknown length or one that is too large."""
    length = headers.get(b"content-length", b"")
    if not length.isdigit() or b"transfer-encoding" in headers:  # in chunks, whatever length it states
        return 411
    return 413 if int(length) > LARGEST_BODY else None
