"""A node at a site: messages that its SuperNode has brought, and the answers to them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message
from flwr.common.constant import SubStatus
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from harmofl.deployment.flower.identities import client_context
from harmofl.deployment.flower.messages import pack, unpack
from harmofl.deployment.flower.runtime.operator import executor_proof, retry_for
from harmofl.deployment.flower.runtime.parts import OFTEN, follow_nobody, look_often
from harmofl.deployment.flower.runtime.programs import HEARTBEAT
from harmofl.deployment.flower.runtime.tasks import heartbeat

run_clientapp: Any = import_module("flwr.supernode.runtime.run_clientapp")  # its package hides it behind a function
follow_nobody(ProtobufClient)
run_clientapp.pull_and_inflate_object_from_tree = look_often(run_clientapp.pull_and_inflate_object_from_tree, OFTEN)
LOCAL_PATIENCE = 30.0
WITHDRAWN = (ObjectPullError, ObjectPushError, httpx.HTTPStatusError)
"""The errors when the run that asked has ended meanwhile, so that nobody wants the answer any more."""

Answer = Callable[[bytes], bytes]


class Inbox:
    """Takes messages from the SuperNode beside us, and gives it the answers."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._address = address
        self._client = RuntimeHttpClient.from_server_address(address, True, None, [executor_proof(secret)])

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
                self._address, True, None, [means], retry_invoker=retry_for(LOCAL_PATIENCE)
            ) as client,
            heartbeat(client),
            suppress(*WITHDRAWN),
        ):
            message, context = pull_message(client)
            reply = Message(pack(answer(request_bytes(message))), reply_to=message)
            del message
            run_clientapp.push_message(client, reply, context)
            run_clientapp.push_task_output(client, context, SubStatus.COMPLETED, "")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def pull_message(client: RuntimeHttpClient) -> tuple[Message, Context]:
    """Fetch a task's message; the code that comes along is not looked at."""
    try:
        message, context, _run, _code = run_clientapp.pull_task_input(client)
    except RuntimeError as error:  # its message was deleted before we came
        raise ObjectPullError("", str(error)) from None
    return message, context


def request_bytes(message: Message) -> bytes:
    """The bytes of a request; empty if there are none, so that the sender learns what is wrong with them."""
    try:
        return unpack(message.content)
    except ValueError:
        return b""


def try_to_join(address: str, authority: bytes, private_key: bytes) -> None:
    """Join the server as a site and leave again, to see whether it would let us in."""
    key = load_ssh_private_key(private_key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signed = NodeAuthHttpInterceptor(key, key.public_key())
    with FleetHttpClient(f"https://{address}", interceptors=[signed], verify=client_context(authority, key)) as client:
        known = public_key_to_bytes(key.public_key())
        node = client.ActivateNode(ActivateNodeRequest(public_key=known, heartbeat_interval=HEARTBEAT))
        client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
