"""The guard before the server's port."""

import asyncio
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from harmofl.deployment.flower.guard import CERTIFICATE, LARGEST_BODY, OPERATOR, PEER, Guard, operator_key
from harmofl.deployment.flower.identities import make_certificate, public_text
from harmofl.deployment.tls.certificates import new_key

SECRET = b"s" * 32
OWN, OTHER, STRANGER = new_key(), new_key(), new_key()
KNOWN = {public_text(key.public_key()): key.public_key() for key in (OWN, OTHER)}


def named(key: ec.EllipticCurvePrivateKey) -> str:
    return b64encode(public_text(key.public_key())).decode()


def signed(key: ec.EllipticCurvePrivateKey, time: str = "now") -> dict[str, str]:
    signature = b64encode(key.sign(time.encode(), ec.ECDSA(hashes.SHA256()))).decode()
    return {"flwr_public_key": named(key), "flwr_timestamp": time, "flwr_signature": signature}


def status(path: str, kind: str = "http", peer: ec.EllipticCurvePrivateKey | None = OWN, **headers: str) -> int:
    """What comes back; 200 if the request reached what stands behind the guard."""
    headers = {"flwr_public_key": named(OWN)} | headers
    return status_of(path, [(name.replace("_", "-"), value) for name, value in headers.items()], kind, peer)


def status_of(
    path: str, headers: list[tuple[str, str]], kind: str = "http", peer: ec.EllipticCurvePrivateKey | None = OWN
) -> int:
    sent: list[Any] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a refused body is never read")

    given = [(name.encode(), value.encode()) for name, value in headers]
    state = {PEER: None if peer is None else public_text(peer.public_key())}
    scope = {"type": kind, "path": path, "headers": given, "state": state}
    asyncio.run(Guard(behind, SECRET, lambda: KNOWN)(scope, receive, send))
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
    assert status("/v1/fleet/push-object", content_length="5", transfer_encoding="chunked") == 411


def test_a_header_that_says_who_asks_stands_there_once() -> None:
    """Of two, Flower reads the first and the guard the last: one site could ask in the name of another."""
    stolen = [(name.replace("_", "-"), value) for name, value in signed(OTHER).items()]
    own = [("flwr-public-key", named(OWN)), ("content-length", "10")]
    assert status_of("/v1/fleet/pull-messages", own) == 200
    assert status_of("/v1/fleet/pull-messages", stolen + own) == 400
    for twice in ("flwr-timestamp", "flwr-signature", "content-length", CERTIFICATE.decode(), OPERATOR):
        assert status_of("/v1/fleet/pull-messages", [*own, (twice, "1"), (twice, "2")]) == 400
    assert status_of("/v1/fleet/pull-messages", [*own, ("accept", "a"), ("accept", "b")]) == 200


def test_nothing_but_http_passes() -> None:
    assert status("/v1/fleet/pull-messages", kind="websocket") == 1008


def test_the_application_behind_is_started_and_stopped() -> None:
    assert status("", kind="lifespan") == 200


def test_a_key_is_looked_at_before_the_body() -> None:
    assert status("/v1/fleet/push-object", content_length="10", flwr_public_key=named(STRANGER)) == 401
    assert status("/v1/fleet/push-object", content_length="10", flwr_public_key="") == 401
    assert status("/v1/fleet/push-object", content_length="10", flwr_public_key="no key!") == 401


def test_the_header_of_one_site_is_of_no_use_on_the_connection_of_another() -> None:
    assert status("/v1/fleet/pull-messages", peer=OWN, content_length="10", **signed(OTHER)) == 401
    assert status("/v1/fleet/pull-messages", peer=OTHER, content_length="10", **signed(OTHER)) == 200


def through_proxy(shown: ec.EllipticCurvePrivateKey | None = OWN, **headers: str) -> int:
    certificate = {} if shown is None else {CERTIFICATE.decode(): quote(make_certificate(shown))}
    return status("/v1/fleet/push-object", peer=None, content_length="10", **certificate, **headers)


def test_behind_a_proxy_a_key_must_have_signed() -> None:
    assert through_proxy(**signed(OWN)) == 200
    assert through_proxy(STRANGER, **signed(STRANGER)) == 401
    assert through_proxy() == 401
    assert through_proxy(**signed(OWN) | {"flwr_timestamp": "tomorrow"}) == 401
    assert through_proxy(**signed(OTHER) | {"flwr_public_key": named(OWN)}) == 401


def test_behind_a_proxy_too_a_stolen_header_is_of_no_use_without_the_key() -> None:
    assert through_proxy(shown=None, **signed(OWN)) == 401
    assert through_proxy(shown=OTHER, **signed(OWN)) == 401
    assert through_proxy(shown=STRANGER, **signed(OWN)) == 401


@pytest.mark.parametrize("certificate", ["", "none", "%00", "-----BEGIN CERTIFICATE-----%0A-----END CERTIFICATE-----"])
def test_what_is_no_certificate_shows_no_key(certificate: str) -> None:
    assert through_proxy(shown=None, **signed(OWN), **{CERTIFICATE.decode(): certificate}) == 401
