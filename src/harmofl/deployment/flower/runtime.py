"""Everything that harmofl uses of Flower beyond its public interface, in one place.

Flower would start a process of its own per message and per run and load submitted code in it. Here the long-living
processes of harmofl take the places of those processes: they acquire Flower's tasks through the same interface as
Flower's own executor, and ignore the code that comes along. pyproject.toml pins the version, and a test names what is
gone if another one lacks it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import secrets
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from fastapi import HTTPException
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from harmofl.deployment.flower.guard import OPERATOR, Guard, operator_key


def module(name: str) -> Any:
    """A module of Flower's; by name, as some of its packages hide one behind a function of the same name."""
    return import_module(f"flwr.{name}")


http_grid = module("superlink.grid.http_grid")
run_clientapp = module("supernode.runtime.run_clientapp")

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
PAYLOAD = "payload"
RAW = "raw"
HEARTBEAT = 10
"""Seconds that a site promises to be heard in; Flower calls it offline after two of them, with its own 30 after 60."""

LOCAL_PATIENCE = 30.0
WENT_AWAY = "went away during the round"
UNAUTHORIZED, FORBIDDEN = 401, 403

Answer = Callable[[bytes], bytes]
TROUBLE = (httpx.HTTPError, OSError)
WITHDRAWN = (ObjectPullError, ObjectPushError, httpx.HTTPStatusError)
"""What a site meets when the run that asked has ended meanwhile: nobody wants the answer any more."""


# Messages


def packed(data: bytes, nonce: str = "") -> RecordDict:
    """Bytes as a message's content: an array, as Flower cuts nothing else into parts."""
    array = Array(dtype="uint8", shape=(len(data),), stype=RAW, data=data)
    content: dict[str, Any] = {PAYLOAD: ArrayRecord({PAYLOAD: array})}
    if nonce:
        content["nonce"] = ConfigRecord({"nonce": nonce})
    return RecordDict(content)


def unpacked(content: RecordDict) -> bytes:
    """The bytes of a message's content; nothing is deserialized."""
    try:
        array = content.array_records[PAYLOAD][PAYLOAD]
    except KeyError:
        raise ValueError("a message without a payload") from None
    return bytes(array.data)


# The server's operator


class _Operator:
    """Says in every request that it comes from the operator."""

    def __init__(self, secret: bytes) -> None:
        self._key = operator_key(secret)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers[OPERATOR] = self._key
        response: httpx.Response = call_next(context)
        return response


def patient(seconds: float) -> RetryInvoker:
    """Try again while a server cannot be reached. Flower's own way would interrupt our process on a refusal."""
    return RetryInvoker(
        wait_gen_factory=lambda: exponential(base_delay=0.2, max_delay=2),
        recoverable_exceptions=httpx.TransportError,
        max_tries=None,
        max_time=seconds,
    )


@dataclass(frozen=True)
class Superlink:
    """Where the server is, as its operator reaches it."""

    address: str
    authority: bytes
    """The certificate that vouches for the server's, as PEM."""
    secret: bytes
    patience: float = 60.0
    """Seconds for which a server that cannot be reached is tried again."""

    def control(self) -> ControlHttpClient:
        """For nodes and runs."""
        return ControlHttpClient.from_server_address(
            self.address, False, self.authority, [_Operator(self.secret)], retry_invoker=patient(self.patience)
        )

    def runtime(self, token: str = "") -> RuntimeHttpClient:
        """For tasks; with a token, for one task."""
        means = RuntimeTokenHttpInterceptor(token) if token else executor(self.secret)
        return RuntimeHttpClient.from_server_address(
            self.address, False, self.authority, [_Operator(self.secret), means], retry_invoker=patient(self.patience)
        )


def executor(secret: bytes) -> SuperExecAuthHttpInterceptor:
    """Proves the right to acquire tasks."""
    return SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})


def answers(superlink: Superlink) -> bool:
    """Whether it is up, and knows us."""
    with replace(superlink, patience=0).control() as control:
        control.ListNodes(ListNodesRequest())
    return True


def node_key(public_key: bytes) -> bytes:
    """A site's public key, in OpenSSH's format, as Flower stores it."""
    key = load_ssh_public_key(public_key)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not an elliptic-curve public key")
    return bytes(public_key_to_bytes(key))


def register(superlink: Superlink, keys: dict[str, bytes]) -> None:
    """Let exactly these sites in: add those that are missing, remove those that are no longer named."""
    with superlink.control() as control:
        nodes = {node.public_key: node for node in control.ListNodes(ListNodesRequest()).nodes_info}
        for site, key in keys.items():
            if key not in nodes:
                control.RegisterNode(RegisterNodeRequest(public_key=key, name=site))
        for key in nodes.keys() - set(keys.values()):
            control.UnregisterNode(UnregisterNodeRequest(node_id=nodes[key].node_id))


# A run at the server

REFUSAL = b"raise SystemExit('harmofl runs nothing that is submitted to Flower: see `harmofl deploy --help`')\n"
PROJECT = b"""[project]
name = "harmofl-relay"
version = "1.0.0"
[tool.flwr.app]
publisher = "harmofl"
[tool.flwr.app.components]
serverapp = "refusal:app"
clientapp = "refusal:app"
"""


def application() -> bytes:
    """The code that Flower wants with a run: all it does, should somebody run it, is refuse."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyproject.toml", PROJECT)
        file.writestr("refusal.py", REFUSAL)
    return archive.getvalue()


def stop_runs(control: ControlHttpClient) -> None:
    """End the runs that a killed process has left, so that their messages reach nobody any more."""
    for identifier, run in control.ListRuns(ListRunsRequest()).run_dict.items():
        if run.status.status != Status.FINISHED:
            with contextlib.suppress(httpx.HTTPStatusError):  # it has just finished by itself
                control.StopRun(StopRunRequest(run_id=identifier))


@contextmanager
def running(superlink: Superlink) -> Iterator[Mailbox]:
    """A run of Flower's whose server application is this process; ended whatever happens."""
    http_grid.pull_objects = quick_pull
    with superlink.control() as control:
        stop_runs(control)
        run = control.StartRun(StartRunRequest(fab=Fab(content=application()))).run_id
        if not run:
            raise RuntimeError("Flower did not accept the run")
        try:
            token = acquired(superlink, run)
            with superlink.runtime(token) as client, beating(client):
                yield Mailbox(opened(superlink, client, token))
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))
        except BaseException:
            with contextlib.suppress(*TROUBLE), replace(superlink, patience=0).control() as brief:
                brief.StopRun(StopRunRequest(run_id=run))
            raise


quick_pull = functools.partial(http_grid.pull_objects, initial_backoff=0.1, backoff_cap=1.0)
"""A reply is announced before its parts have arrived; Flower would look again after a second, then two, four, …"""


def acquired(superlink: Superlink, run: int) -> str:
    """The token of the run's one task; tasks of other runs, which only an operator could have started, are let go."""
    with superlink.runtime() as client:
        while True:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if not found.token:
                raise RuntimeError("Flower gave no task for the run")
            if found.task.run_id == run:
                return str(found.token)


def opened(superlink: Superlink, client: RuntimeHttpClient, token: str) -> HttpGrid:
    """What a server application sends and receives with."""
    task = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    grid = HttpGrid(superlink.address, root_certificates=superlink.authority, token=token)
    grid._client = client  # its own would not say that it is the operator, and would interrupt us on a refusal
    grid.set_run(run_from_proto(task.run))
    return grid


@contextmanager
def beating(client: RuntimeHttpClient, seconds: float = 8.0) -> Iterator[None]:
    """Say all the while that the task is being worked on. Flower's own sender would interrupt our process."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(seconds):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except TROUBLE:
                continue
            except RuntimeError:
                if not ended.is_set():  # else: the client was closed while a beat waited for a server that is gone
                    raise

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=1)


@dataclass(frozen=True)
class Presence:
    """A site that is connected, and since when: one that was restarted meanwhile has forgotten what it was asked."""

    node: int
    since: str


class Mailbox:
    """Messages of a run to sites and back."""

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid

    def present(self) -> dict[bytes, Presence]:
        """Who is connected, by public key."""
        nodes = self._grid.get_nodes()
        return {node.public_key: Presence(node.node_id, node.last_activated_at) for node in nodes}

    def post(self, node: int, data: bytes, seconds: float) -> str:
        """Send bytes that are of use for so long; return the message's name, which nobody else can guess.

        It is empty if the message was not taken, as that site has just been removed.
        """
        content = packed(data, nonce=secrets.token_hex(16))
        [identifier] = [*self._grid.push_messages([Message(content, node, "query", ttl=seconds)]), ""][:1]
        return str(identifier or "")

    def fetch(self, identifier: str) -> bytes | str | None:
        """The bytes that answer a message, or the reason why there are none; None as long as there is neither."""
        for message in self._grid.pull_messages([identifier]):
            if message.metadata.reply_to_message_id == identifier:
                return reason(message.error) if message.has_error() else unpacked(message.content)
        return None


def is_lost(error: Exception) -> bool:
    """Whether the SuperLink is gone, or no longer knows our run, as after its restart."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == UNAUTHORIZED
    return isinstance(error, httpx.TransportError)


def reason(error: Error) -> str:
    """What Flower, or a site in its name, gives as the reason."""
    if error.code == ErrorCode.NODE_UNAVAILABLE:
        return WENT_AWAY
    return f"Flower's error {error.code}: {error.reason}"[:200]


# A node at a site


class Inbox:
    """The SuperNode beside us, from which we take messages and to which we give the answers."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._address = address
        self._client = RuntimeHttpClient.from_server_address(address, True, None, [executor(secret)])

    def answer_one(self, answer: Answer) -> bool:
        """Acquire a task and answer its message; False if there is none."""
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP, TaskType.AGENT_APP])
        found = self._client.AcquireTask(wanted)
        if found.token:
            self._work(found.token, answer)
        return bool(found.token)

    def _work(self, token: str, answer: Answer) -> None:
        means = RuntimeTokenHttpInterceptor(token)
        with (
            RuntimeHttpClient.from_server_address(
                self._address, True, None, [means], retry_invoker=patient(LOCAL_PATIENCE)
            ) as client,
            beating(client),
            contextlib.suppress(*WITHDRAWN),
        ):
            message, context = pulled(client)
            reply = Message(packed(answer(asked(message))), reply_to=message)
            del message
            run_clientapp.push_message(client, reply, context)
            run_clientapp.push_task_output(client, context, SubStatus.COMPLETED, "")

    def close(self) -> None:
        """Hang up."""
        self._client.close()


def pulled(client: RuntimeHttpClient) -> tuple[Message, Context]:
    """A task's message; the code that comes along is not looked at."""
    try:
        message, context, _run, _code = run_clientapp.pull_task_input(client)
    except RuntimeError as error:  # its message was deleted before we came
        raise ObjectPullError("", str(error)) from None
    return message, context


def asked(message: Message) -> bytes:
    """The bytes of a request; none if there are none, so that the sender hears what is wrong with them."""
    try:
        return unpacked(message.content)
    except ValueError:
        return b""


def introduce(address: str, authority: bytes, private_key: bytes) -> None:
    """Appear at the server as a site and leave again, to see whether it would let us in."""
    key = load_ssh_private_key(private_key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signed = NodeAuthHttpInterceptor(key, key.public_key())
    with FleetHttpClient.from_server_address(address, False, authority, [signed]) as client:
        known = public_key_to_bytes(key.public_key())
        node = client.ActivateNode(ActivateNodeRequest(public_key=known, heartbeat_interval=HEARTBEAT))
        client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


# Flower's own processes, as our children


def run_superlink(secret: bytes) -> None:
    """Run a SuperLink behind our guard; a site speaks for itself only, to the server only."""
    command = module("superlink.cli.flower_superlink")
    fleet_handlers = module("superlink.servicer.fleet.fleet_handlers")
    serve, push = command.uvicorn.run, fleet_handlers.push_messages

    def guarded(app: Any, **options: Any) -> None:
        serve(app=Guard(app, secret), **options | {"access_log": False, "timeout_graceful_shutdown": 2})

    def push_own(request: Any, state: Any) -> Any:
        for message in request.messages_list:
            if not message.metadata.reply_to_message_id or message.metadata.src_node_id != request.node.node_id:
                raise HTTPException(FORBIDDEN, "not a reply of this site's own")
        return push(request=request, state=state)

    command.uvicorn = SimpleNamespace(run=guarded)
    fleet_handlers.push_messages = push_own
    command.flower_superlink()


def run_supernode() -> None:
    """Run a SuperNode that looks for messages more often, and is missed sooner, than by default."""
    loop = module("supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 6))
    loop._pull_and_store_message = tidy(loop._pull_and_store_message)
    for user in ("supercore.heartbeat", "supernode.fleet_http_connection"):
        module(user).HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    module("supernode.cli.flower_supernode").flower_supernode()


def tidy(pull_and_store: Callable[..., int | None]) -> Callable[..., int | None]:
    """Clean up after a message whose run ends while its parts are being fetched.

    Flower tells of that end by an exception which its own cleaning up does not see: a task would stay whose message
    never becomes whole, and whoever acquired it would wait for hours. As an ordinary exception it is seen.
    """

    def pull(**arguments: Any) -> int | None:
        for name in ("pull_object", "confirm_message_received"):
            arguments[name] = ordinary(arguments[name])
        return pull_and_store(**arguments)

    return pull


def ordinary(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that tells of a run's end by an exception like others."""

    def called(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except RunNotRunningException:
            raise RuntimeError("its run has ended") from None

    return called


def leave_with(parent: int) -> None:
    """End this process, in good order, soon after its parent has ended in whatever way."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
