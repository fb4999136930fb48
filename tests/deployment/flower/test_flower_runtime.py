"""What harmofl uses of Flower beyond its public interface is still there, and does what it did."""

import base64
import io
import os
import resource
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest

pytest.importorskip("flwr", reason="harmofl[flower] is not installed")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from fastapi import HTTPException
from flwr.app import Message, RecordDict
from flwr.supercore.run import RunNotRunningException

from harmofl.deployment.allowances import write_limit
from harmofl.deployment.flower import guard
from harmofl.deployment.flower.guard import Guard
from harmofl.deployment.flower.identities import public_text
from harmofl.deployment.flower.messages import pack, unpack, with_nonce
from harmofl.deployment.flower.runtime import programs
from harmofl.deployment.flower.runtime.operator import node_key
from harmofl.deployment.flower.runtime.parts import OFTEN, look_often
from harmofl.deployment.flower.runtime.run import application
from harmofl.deployment.flower.runtime.tasks import heartbeat
from harmofl.deployment.tls.certificates import make_site_key

USED = {
    "supernode.start_client_internal": ["time", "_pull_and_store_message", "_push_messages", "pull_objects"],
    "supernode.fleet_http_connection": ["HEARTBEAT_DEFAULT_INTERVAL", "HeartbeatSender"],
    "supernode.cli.flower_supernode": ["flower_supernode"],
    "supernode.runtime.run_clientapp": [
        "pull_task_input",
        "push_message",
        "push_task_output",
        "pull_and_inflate_object_from_tree",
    ],
    "supercore.heartbeat": ["HEARTBEAT_DEFAULT_INTERVAL"],
    "superlink.cli.flower_superlink": ["uvicorn", "flower_superlink"],
    "supercore.protobuf.client": ["ssl", "ProtobufClient"],
    "superlink.grid.http_grid": ["pull_objects", "HttpGrid"],
    "superlink.servicer.fleet.fleet_handlers": ["push_messages", "push_object"],
    "superlink.routers.fleet.router": ["fleet_handlers"],
}
"""Module of Flower, and the names in it that are replaced or called."""


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in USED.items() for name in names])
def test_a_name_that_is_used_is_there(module: str, name: str) -> None:
    assert hasattr(import_module(f"flwr.{module}"), name), f"flwr {version('flwr')} has no {module}.{name}"


def test_flower_is_the_version_that_was_read() -> None:
    assert version("flwr").startswith("1.41."), "read Flower's source again before another version is allowed"


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Flower's SuperLink as `run_superlink` changes it, without being started."""
    command = import_module("flwr.superlink.cli.flower_superlink")
    handlers = import_module("flwr.superlink.servicer.fleet.fleet_handlers")
    served: list[Any] = []

    def serve(config: Any, door: Any) -> None:
        served.append(config)
        door.close()

    options = {
        "app": "Flower",
        "host": "127.0.0.1",
        "port": 0,
        "ssl_certfile": "server.crt",
        "ssl_keyfile": "server.key",
    }
    monkeypatch.setattr(programs, "serve", serve)
    monkeypatch.setattr(command, "uvicorn", command.uvicorn)
    monkeypatch.setattr(command, "flower_superlink", lambda: command.uvicorn.run(**options))
    asked = SimpleNamespace(objects_to_push=["a part"])
    unasked = SimpleNamespace(objects_to_push=[])

    def push_messages(request: Any, state: Any) -> Any:
        """As Flower's: what replies to no message is dropped, without a word."""
        return asked if request.messages_list[0].metadata.reply_to_message_id == "asked" else unasked

    monkeypatch.setattr(handlers, "push_messages", push_messages)
    monkeypatch.setattr(handlers, "push_object", lambda request, state: "part pushed")
    programs.run_superlink(b"secret", tmp_path / "largest-reply")
    return SimpleNamespace(served=served, push=handlers.push_messages)


def test_a_superlink_answers_behind_the_guard(superlink: Any) -> None:
    (config,) = superlink.served
    assert isinstance(config.app, Guard)
    assert config.ssl_context_factory is not None, "it asks for keys"
    assert not config.access_log


def message(sender: int, reply_to: str) -> SimpleNamespace:
    return SimpleNamespace(metadata=SimpleNamespace(src_node_id=sender, reply_to_message_id=reply_to))


@pytest.mark.parametrize(("sender", "reply_to"), [(7, ""), (8, "asked")], ids=["not a reply", "in another's name"])
def test_a_site_may_only_reply_and_only_for_itself(superlink: Any, sender: int, reply_to: str) -> None:
    def request(*messages: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(node=SimpleNamespace(node_id=7), messages_list=list(messages))

    assert superlink.push(request(message(7, "asked")), state=None).objects_to_push
    with pytest.raises(HTTPException, match="403"):
        superlink.push(request(message(sender, reply_to)), state=None)
    with pytest.raises(HTTPException, match="403"):
        superlink.push(request(message(7, "asked"), message(sender, reply_to)), state=None)


def test_a_supernode_looks_for_messages_often_and_is_missed_soon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clients = import_module("flwr.supercore.protobuf.client")
    make_site_key(tmp_path, "A")
    loop = import_module("flwr.supernode.start_client_internal")
    slept: list[float] = []
    for module, name in [
        (clients, "ssl"),
        (loop, "time"),
        (loop, "_pull_and_store_message"),
        (loop, "pull_objects"),
        (import_module("flwr.supercore.heartbeat"), "HEARTBEAT_DEFAULT_INTERVAL"),
        (import_module("flwr.supernode.fleet_http_connection"), "HEARTBEAT_DEFAULT_INTERVAL"),
    ]:
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    monkeypatch.setattr(programs.time, "sleep", slept.append)
    monkeypatch.setattr(import_module("flwr.supernode.cli.flower_supernode"), "flower_supernode", lambda: None)
    programs.run_supernode(tmp_path / "A", resource.RLIM_INFINITY)
    assert isinstance(clients.ssl.SSLContext(clients.ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext)
    loop.time.sleep(3)  # type: ignore[attr-defined]
    assert slept == [0.5]
    assert import_module("flwr.supercore.heartbeat").HEARTBEAT_DEFAULT_INTERVAL == programs.HEARTBEAT == 10


def test_a_supernode_looks_most_often_during_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(programs.time, "sleep", slept.append)
    pace, found = programs.Pace(), iter([None, 7, None])
    pull = pace.watch(lambda **arguments: next(found))
    for _ in range(3):
        pull()
        pace.sleep(3)
    later = time.monotonic() + 61
    monkeypatch.setattr(programs.time, "monotonic", lambda: later)
    pace.sleep(3)
    assert slept == [0.5, 0.1, 0.1, 0.5]


def test_parts_that_are_not_there_yet_are_looked_for_soon() -> None:
    """Flower's own wait is a second at first, at each of its stations."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects

    missing, started = iter([True, True, False]), time.monotonic()

    def pull(name: str) -> bytes:
        if next(missing):
            raise ObjectUnavailableError(name)
        return b"part"

    assert look_often(pull_objects)(["name"], pull) == {"name": b"part"}
    assert time.monotonic() - started < 0.9
    assert look_often(look_often(pull_objects)).func is pull_objects  # type: ignore[attr-defined]


def test_one_site_looks_for_parts_ten_times_a_second() -> None:
    """Flower doubles the wait after every look: for a message that takes a second, half a second would be lost."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects

    looked: list[float] = []

    def pull(name: str) -> bytes:
        looked.append(time.monotonic())
        if looked[-1] - looked[0] < 1:
            raise ObjectUnavailableError(name)
        return b"part"

    look_often(pull_objects, OFTEN)(["name"], pull)
    assert len(looked) > 7, "with waits that double there would be 6"


def incoming(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, bytes]]:
    """A message with two parts, as a SuperNode is told of it, and what is in it by name."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 7)
    content = RecordDict({name: pack(name.encode())["payload"] for name in ("a", "b")})
    message = Message(content, dst_node_id=1, message_type="query")
    message.metadata.__dict__["_message_id"] = message.object_id
    return message, {name: each.deflate() for name, each in get_all_nested_objects(message).items()}


def receive(monkeypatch: pytest.MonkeyPatch, message: Any, store: Any, pull_object: Any) -> int | None:
    """Flower's own reception of a message at a SuperNode."""
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    loop = import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(loop, "pull_objects", programs.without_result(loop.pull_objects))  # type: ignore[attr-defined]
    state = InMemoryNodeState(store)
    state.store_run(SimpleNamespace(run_id=7, fab_hash="", primary_task_type=""))  # type: ignore[arg-type]
    nothing: dict[str, Any] = dict.fromkeys(["node_config", "get_run", "get_fab", "trusted_entities"])
    received: int | None = programs.pass_on_at_once(loop._pull_and_store_message)(  # type: ignore[attr-defined]
        state=state,
        object_store=store,
        receive=lambda: (message, get_object_tree(message)),
        pull_object=pull_object,
        confirm_message_received=lambda run, name: None,
        **nothing,
    )
    return received


def test_a_part_is_passed_on_before_the_next_one_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

    message, parts = incoming(monkeypatch)
    store, there = InMemoryObjectStore(), []

    def pull(run: int, name: str) -> bytes:
        there.append(sum(store.get(each) == content for each, content in parts.items()))
        return parts[name]

    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # by which Flower decides how many parts it asks for at once
    assert receive(monkeypatch, message, store, pull) == 7
    assert there == list(range(len(parts)))


def test_a_site_may_take_a_message_as_soon_as_its_last_part_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells the SuperNode so, which forgets the message."""
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

    message, parts = incoming(monkeypatch)

    class Store(InMemoryObjectStore):
        def put(self, object_id: str, object_content: bytes) -> None:
            super().put(object_id, object_content)
            if all(map(self.get, parts)):
                self.delete(message.metadata.message_id)

    store = Store()
    assert receive(monkeypatch, message, store, lambda run, name: parts[name]) == 7
    assert len(store) == 0


def test_a_part_that_is_not_what_its_name_says_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

    message, _ = incoming(monkeypatch)
    store = InMemoryObjectStore()
    assert receive(monkeypatch, message, store, lambda run, name: b"something else") is None
    assert len(store) == 0


def test_a_message_whose_run_ends_while_it_is_fetched_is_cleaned_up() -> None:
    def ended(run: int, identifier: str) -> bytes:
        raise RunNotRunningException

    def pull(pull_object: Any, confirm_message_received: Any, more: str) -> int | None:
        for call in (pull_object, confirm_message_received):
            with pytest.raises(RuntimeError, match="ended"):  # which Flower's cleaning up sees
                call(1, "name")
        assert more == "as it was"
        return None

    assert programs.clean_up_after(pull)(pull_object=ended, confirm_message_received=ended, more="as it was") is None


def test_the_end_of_a_run_is_an_exception_that_cleaning_up_would_miss() -> None:
    assert issubclass(RunNotRunningException, BaseException)
    assert not issubclass(RunNotRunningException, Exception)


def test_bytes_come_out_of_a_message_as_they_went_in() -> None:
    data = bytes(range(256)) * 1000
    assert unpack(with_nonce(pack(data), "n")) == data


def test_no_two_messages_have_the_same_name() -> None:
    content = pack(b"data")
    first, second = with_nonce(content, "a"), with_nonce(content, "b")
    assert first.object_id != second.object_id
    assert first["payload"] is second["payload"], "the bytes are there once"


def test_a_message_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="payload"):
        unpack(RecordDict())


def test_the_submitted_code_refuses_to_run() -> None:
    with zipfile.ZipFile(io.BytesIO(application())) as archive:
        code = archive.read("refusal.py")
    with pytest.raises(SystemExit, match="runs nothing"):
        exec(compile(code, "refusal.py", "exec"), {})


def public(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def test_a_sites_key_is_an_elliptic_curves() -> None:
    assert b"PUBLIC KEY" in node_key(public(ec.generate_private_key(ec.SECP384R1())))
    with pytest.raises(ValueError, match="elliptic"):
        node_key(public(ed25519.Ed25519PrivateKey.generate()))


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
    with heartbeat(client, seconds=0.01):  # type: ignore[arg-type]
        assert client.asked.wait(10)
        (thread,) = set(threading.enumerate()) - before
    client.closed.set()
    thread.join(10)
    assert not thread.is_alive()


def test_the_parts_of_a_reply_are_counted_before_they_are_kept(superlink: Any, tmp_path: Path) -> None:
    handlers = import_module("flwr.superlink.servicer.fleet.fleet_handlers")
    write_limit(tmp_path / "largest-reply", 100)
    node, reply = SimpleNamespace(node_id=7), SimpleNamespace(reply_to_message_id="asked", src_node_id=7)
    message = SimpleNamespace(node=node, messages_list=[SimpleNamespace(metadata=reply)])

    def push(size: int) -> Any:
        return handlers.push_object(request=SimpleNamespace(node=node, object_content=bytes(size)), state=None)

    with pytest.raises(HTTPException):
        push(1)  # it was not asked
    handlers.push_messages(request=message, state=None)
    assert push(150) == "part pushed"
    handlers.push_messages(request=message, state=None)  # the same reply again
    with pytest.raises(HTTPException, match="more than the run expects"):
        push(60)
    for made_up in ("one", "another"):  # a reply to what nobody asked gives no right to send more
        reply.reply_to_message_id = made_up
        handlers.push_messages(request=message, state=None)
        with pytest.raises(HTTPException, match="more than the run expects"):
            push(60)


def test_the_guard_reads_the_headers_that_flower_writes() -> None:
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

    written = [FLEET_HTTP_PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER]
    assert [name.encode() for name in written] == [guard.PUBLIC_KEY, guard.TIMESTAMP, guard.SIGNATURE]


def test_the_guard_takes_flowers_own_signature() -> None:
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    key = ec.generate_private_key(ec.SECP384R1())
    headers = {guard.TIMESTAMP: b"now", guard.SIGNATURE: base64.b64encode(sign_message(key, b"now"))}
    assert guard.has_signed(key.public_key(), headers)
    assert not guard.has_signed(key.public_key(), headers | {guard.TIMESTAMP: b"later"})
    assert public_key_to_bytes(key.public_key()) == public_text(key.public_key())


class Redirecting(BaseHTTPRequestHandler):
    """A server that sends whoever asks to another address of theirs."""

    elsewhere: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.elsewhere.append(self.path)
        self.send_response(307)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}/another-machine")
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_a_server_cannot_send_a_site_to_another_address() -> None:
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with FleetHttpClient(f"http://127.0.0.1:{server.server_port}") as client, pytest.raises(httpx.HTTPStatusError):
            client.ActivateNode(ActivateNodeRequest())
        server.shutdown()
    assert Redirecting.elsewhere == ["/v1/fleet/activate-node"]


def test_a_supernode_has_so_much_memory_and_no_more() -> None:
    code = "from harmofl.deployment.flower.runtime.programs import limit_memory\nlimit_memory(2**30)\nbytearray(2**31)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode
    assert ended.stderr.endswith("MemoryError\n")
