"""Who may use what of the server's one port: sites the fleet's paths, and only the operator all others.

Flower answers sites, operators and applications on one port, and asks operators for nothing: whoever reaches the
port could register a site, stop a run or read its log. This guard stands in front of all that; it imports no Flower.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Note = Callable[[str, str], None]
REFUSED = (401, 403, 413)
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = re.compile(r"/v1/fleet/[a-z-]+")
"""Everything that sites need, and all that a reverse proxy may forward."""

OPERATOR = "x-harmofl-operator"
"""The header by which the operator proves to know the server's secret."""

LARGEST_BODY = 8 * 2**20
"""Of one request: messages travel in parts of 5 MiB, so a larger body is not part of one."""

LIMIT = "largest-reply"
"""The file, beside the server's secret, in which a run says how large a reply may be."""


def operator_key(secret: bytes) -> str:
    """Compute the content of the operator's header; the secret itself never travels."""
    return hmac.new(secret, b"harmofl operator", hashlib.sha256).hexdigest()


class Guard:
    """Forwards what is allowed to an application, and answers the rest itself."""

    def __init__(self, application: Application, secret: bytes, note: Note = lambda who, reason: None) -> None:
        """`note`: writes down who was refused, and why."""
        self._application = application
        self._key = operator_key(secret).encode()
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request as an ASGI application."""
        refusal = self._refusal(scope)
        if refusal is None:
            await self._application(scope, receive, self._watch(scope, send))
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
        if not FLEET.fullmatch(scope["path"]):
            allowed = hmac.compare_digest(headers.get(OPERATOR.encode(), b""), self._key)
            return None if allowed else 404  # as if there were nothing
        return body_refusal(headers)


def body_refusal(headers: MutableMapping[bytes, bytes]) -> int | None:
    """Return the status that refuses a body of unknown length or one that is too large."""
    length = headers.get(b"content-length", b"")
    if not length.isdigit():
        return 411
    return 413 if int(length) > LARGEST_BODY else None
