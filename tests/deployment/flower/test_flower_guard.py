"""The guard before the server's port."""

import asyncio
from typing import Any

import pytest

from harmofl.deployment.flower.guard import LARGEST_BODY, OPERATOR, Guard, operator_key

SECRET = b"s" * 32


def status(path: str, kind: str = "http", **headers: str) -> int:
    """What comes back; 200 if the request reached what stands behind the guard."""
    sent: list[Any] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a refused body is never read")

    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "headers": given}
    asyncio.run(Guard(behind, SECRET)(scope, receive, send))
    return int(sent[0].get("status", sent[0].get("code", 0)))


def test_sites_reach_the_fleet() -> None:
    assert status("/v1/fleet/pull-messages", content_length="10") == 200


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/", "/v1/fleetx", "/v1/fleet/../control/x"]
)
def test_others_find_nothing_elsewhere(path: str) -> None:
    assert status(path, content_length="0") == 404
    assert status(path, content_length="0", **{OPERATOR: operator_key(b"another")}) == 404


def test_the_operator_reaches_all() -> None:
    assert status("/v1/control/start-run", **{OPERATOR: operator_key(SECRET)}) == 200


def test_the_secret_itself_is_no_key() -> None:
    assert status("/docs", **{OPERATOR: SECRET.decode()}) == 404


@pytest.mark.parametrize(("length", "expected"), [(LARGEST_BODY, 200), (LARGEST_BODY + 1, 413), (-1, 411)])
def test_a_body_has_a_length_and_a_limit(length: int, expected: int) -> None:
    assert status("/v1/fleet/push-object", content_length=str(length)) == expected


def test_a_body_without_a_length_is_refused() -> None:
    assert status("/v1/fleet/push-object", transfer_encoding="chunked") == 411


def test_nothing_but_http_passes() -> None:
    assert status("/v1/fleet/pull-messages", kind="websocket") == 1008


def test_the_application_behind_is_started_and_stopped() -> None:
    assert status("", kind="lifespan") == 200
