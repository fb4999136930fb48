"""What harmofl uses of Flower beyond its public interface is still there, and does what it did."""

import inspect
import io
import threading
import zipfile
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("flwr", reason="harmofl[flower] is not installed")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.app import RecordDict

from harmofl.deployment.flower import runtime

USED = {
    "supernode.start_client_internal": ["time", "_pull_and_store_message", "_push_messages"],
    "supernode.fleet_http_connection": ["HEARTBEAT_DEFAULT_INTERVAL", "HeartbeatSender"],
    "supernode.cli.flower_supernode": ["flower_supernode"],
    "supernode.runtime.run_clientapp": ["pull_task_input", "push_message", "push_task_output"],
    "supercore.heartbeat": ["HEARTBEAT_DEFAULT_INTERVAL"],
    "superlink.cli.flower_superlink": ["uvicorn", "flower_superlink"],
    "superlink.grid.http_grid": ["pull_objects", "HttpGrid"],
    "superlink.servicer.fleet.fleet_handlers": ["push_messages"],
    "superlink.routers.fleet.router": ["fleet_handlers"],
}
"""Module of Flower, and the names in it that are replaced or called."""


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in USED.items() for name in names])
def test_a_name_that_is_used_is_there(module: str, name: str) -> None:
    assert hasattr(import_module(f"flwr.{module}"), name), f"flwr {version('flwr')} has no {module}.{name}"


def test_flower_is_the_version_that_was_read() -> None:
    assert version("flwr").startswith("1.41."), "read Flower's source again before another version is allowed"


def test_flower_calls_what_is_replaced_through_its_module() -> None:
    router = inspect.getsource(import_module("flwr.superlink.routers.fleet.router"))
    assert "fleet_handlers.push_messages(" in router
    command = inspect.getsource(import_module("flwr.superlink.cli.flower_superlink"))
    assert "uvicorn.run(" in command
    loop = inspect.getsource(import_module("flwr.supernode.start_client_internal"))
    assert "time.sleep(3)" in loop
    assert '"SuperNode ID: %s"' in loop, "what site.py listens for"
    retry = inspect.getsource(import_module("flwr.supercore.retry.http_retry"))
    assert "Connection attempt failed" in retry
    assert "Connection successful" in retry
    grid = inspect.getsource(import_module("flwr.superlink.grid.http_grid"))
    assert "pull_objects(\n" in grid
    assert "self._client is not None" in grid


def test_a_message_whose_run_ends_while_it_is_fetched_is_cleaned_up() -> None:
    def ended(run: int, identifier: str) -> bytes:
        raise runtime.RunNotRunningException

    def pull(pull_object: Any, confirm_message_received: Any, more: str) -> int | None:
        for call in (pull_object, confirm_message_received):
            with pytest.raises(RuntimeError, match="ended"):  # which Flower's cleaning up sees
                call(1, "name")
        assert more == "as it was"
        return None

    assert runtime.tidy(pull)(pull_object=ended, confirm_message_received=ended, more="as it was") is None


def test_flower_still_needs_that_cleaning_up() -> None:
    loop = inspect.getsource(import_module("flwr.supernode.start_client_internal"))
    assert "run_id = _pull_and_store_message(\n                state=state" in loop, "called with keywords"
    assert issubclass(runtime.RunNotRunningException, BaseException)
    assert not issubclass(runtime.RunNotRunningException, Exception)


def test_bytes_come_out_of_a_message_as_they_went_in() -> None:
    data = bytes(range(256)) * 1000
    assert runtime.unpacked(runtime.packed(data, nonce="n")) == data


def test_no_two_messages_have_the_same_name() -> None:
    contents = [runtime.packed(b"data", nonce=nonce) for nonce in ("a", "b")]
    assert contents[0].object_id != contents[1].object_id


def test_a_message_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="payload"):
        runtime.unpacked(RecordDict())


def test_the_submitted_code_refuses_to_run() -> None:
    with zipfile.ZipFile(io.BytesIO(runtime.application())) as archive:
        code = archive.read("refusal.py")
    with pytest.raises(SystemExit, match="runs nothing"):
        exec(compile(code, "refusal.py", "exec"), {})


def public(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def test_a_sites_key_is_an_elliptic_curves() -> None:
    assert b"PUBLIC KEY" in runtime.node_key(public(ec.generate_private_key(ec.SECP384R1())))
    with pytest.raises(ValueError, match="elliptic"):
        runtime.node_key(public(ed25519.Ed25519PrivateKey.generate()))


class SlowClient:
    """A client whose heartbeat is still being tried when it is closed."""

    def __init__(self) -> None:
        self.asked, self.closed = threading.Event(), threading.Event()

    def SendTaskHeartbeat(self, request: object) -> None:  # noqa: N802
        self.asked.set()
        self.closed.wait(10)
        raise RuntimeError("Cannot send a request, as the client has been closed.")


def test_a_heartbeat_that_outlasts_its_client_ends_in_silence() -> None:
    """An exception in the thread would be an error of this test."""
    before = set(threading.enumerate())
    client = SlowClient()
    with runtime.beating(client, seconds=0.01):  # type: ignore[arg-type]
        assert client.asked.wait(10)
        (thread,) = set(threading.enumerate()) - before
    client.closed.set()
    thread.join(10)
    assert not thread.is_alive()
