"""The SuperLink as its operator reaches it: sites are registered, runs are started."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient

from harmofl.deployment.flower.guard import OPERATOR, operator_key
from harmofl.deployment.flower.identities import client_context, derive_operator

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class _Operator:
    """Adds to every request the proof that it comes from the operator."""

    def __init__(self, secret: bytes) -> None:
        self._key = operator_key(secret)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers[OPERATOR] = self._key
        response: httpx.Response = call_next(context)
        return response


def retry_for(seconds: float) -> RetryInvoker:
    """Retry while a server cannot be reached. Flower's own retries would interrupt our process on a refusal."""
    return RetryInvoker(
        wait_gen_factory=lambda: exponential(base_delay=0.2, max_delay=2),
        recoverable_exceptions=httpx.TransportError,
        max_tries=None,
        max_time=seconds,
    )


@dataclass(frozen=True)
class Superlink:
    """What the operator needs to reach the SuperLink."""

    address: str
    authority: bytes
    """The certificate that vouches for the server's, as PEM."""
    secret: bytes
    patience: float = 60.0
    """Seconds for which to retry when it cannot be reached."""

    def control(self) -> ControlHttpClient:
        """A client for nodes and runs."""
        means = [_Operator(self.secret)]
        return ControlHttpClient(self._url, interceptors=means, verify=self._tls, retry_invoker=self._retry)

    def runtime(self, token: str = "") -> RuntimeHttpClient:
        """A client for tasks; with a token, for one task."""
        means = RuntimeTokenHttpInterceptor(token) if token else executor_proof(self.secret)
        both = [_Operator(self.secret), means]
        return RuntimeHttpClient(self._url, interceptors=both, verify=self._tls, retry_invoker=self._retry)

    @property
    def _url(self) -> str:
        return f"https://{self.address}"

    @property
    def _tls(self) -> ssl.SSLContext:
        return client_context(self.authority, derive_operator(self.secret))

    @property
    def _retry(self) -> RetryInvoker:
        return retry_for(self.patience)


def executor_proof(secret: bytes) -> SuperExecAuthHttpInterceptor:
    """The proof of the right to acquire tasks."""
    return SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})


def is_answering(superlink: Superlink) -> bool:
    """Whether it is up, and accepts our secret."""
    with replace(superlink, patience=0).control() as control:
        control.ListNodes(ListNodesRequest())
    return True


def find_online(superlink: Superlink) -> set[bytes]:
    """The public keys of those that are connected."""
    with replace(superlink, patience=0).control() as control:
        nodes = control.ListNodes(ListNodesRequest()).nodes_info
    return {node.public_key for node in nodes if node.status == NodeStatus.ONLINE}


def node_key(public_key: bytes) -> bytes:
    """Convert a site's public key from OpenSSH's format to the one in which Flower stores it."""
    key = load_ssh_public_key(public_key)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not an elliptic-curve public key")
    return bytes(public_key_to_bytes(key))


def register(superlink: Superlink, keys: dict[str, bytes]) -> None:
    """Register exactly these sites: add those that are missing, remove all others."""
    with superlink.control() as control:
        nodes = {node.public_key: node for node in control.ListNodes(ListNodesRequest()).nodes_info}
        for site, key in keys.items():
            if key not in nodes:
                control.RegisterNode(RegisterNodeRequest(public_key=key, name=site))
        for key in nodes.keys() - set(keys.values()):
            control.UnregisterNode(UnregisterNodeRequest(node_id=nodes[key].node_id))
