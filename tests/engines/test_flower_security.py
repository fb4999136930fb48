"""Who gets in on Flower, with real processes: a site with its own registered key over TLS, and nobody else."""

import os
import shutil
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from federations import THREE, Live, live, make_kits, wait_until

from harmofl.deployment.engine import find_engine
from harmofl.deployment.tls.address import Address
from harmofl.deployment.tls.certificates import issue_server_certificate, make_authority, make_site_key
from runs import records

pytestmark = pytest.mark.engines

FIRST, SECOND, LAST = THREE


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The server and two of three sites; tests put an impostor in the place of the third."""
    with live(tmp_path_factory.mktemp("flower"), "flower", THREE, start=THREE[:2]) as started:
        started.wait_until_connected(2)
        yield started


@pytest.fixture
def impostor(federation: Live) -> Iterator[Path]:
    """The third site's folder, which a test changes before it starts the site; put back afterwards."""
    place, kept = federation.place(LAST), federation.folder / "kept"
    shutil.copytree(place, kept)
    yield place
    if LAST in federation.processes:
        federation.stop(LAST)
    shutil.rmtree(place)
    kept.rename(place)


def told(federation: Live, words: str) -> None:
    """Wait until the impostor's own log says why it is not let in."""
    wait_until(lambda: words in federation.log(LAST), words, federation.processes[LAST], seconds=60)
    assert "connected\n" not in federation.log(LAST).replace("not connected", "")


def ways(federation: Live) -> tuple[httpx.Client, str]:
    """A client on a connection of the first site's: who has no known key gets no answer at all."""
    from harmofl.deployment.flower.identities import client_context, read_key

    key = read_key(federation.place(FIRST) / "keys" / FIRST)
    context = client_context(authority_of(federation), key)
    return httpx.Client(verify=context), f"https://{federation.kit.federation.server}"


def authority_of(federation: Live) -> bytes:
    return (federation.kit.folder / "tls" / "ca.crt").read_bytes()


def named(federation: Live) -> dict[str, str]:
    """The header that names the first site's key."""
    from harmofl.deployment.flower.server import read_site_keys

    return {"flwr-public-key": b64encode(read_site_keys(federation.kit)[FIRST]).decode()}


@pytest.mark.parametrize("has_key", [False, True], ids=["no key", "a key that nobody knows"])
def test_a_stranger_gets_no_answer(federation: Live, has_key: bool) -> None:
    from harmofl.deployment.flower.identities import client_context
    from harmofl.deployment.tls.certificates import new_key

    authority = authority_of(federation)
    context = client_context(authority, new_key()) if has_key else ssl.create_default_context(cadata=authority.decode())
    with httpx.Client(verify=context) as client, pytest.raises(httpx.TransportError):
        client.post(f"https://{federation.kit.federation.server}/v1/fleet/pull-messages", content=b"", timeout=20)


def test_unfinished_bodies_of_strangers_fill_no_memory(federation: Live) -> None:
    """Sixty connections held a gigabyte once."""
    before, calls, part = memory_of(federation), [], b"x" * 2**20
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n"
    context = ssl.create_default_context(cadata=authority_of(federation).decode())
    address = Address.parse(federation.kit.federation.server)
    for _ in range(60):
        connection = socket.create_connection((address.host, address.port), 20)
        calls.append(connection)
        with suppress(OSError):
            calls.append(secured := context.wrap_socket(connection, server_hostname=address.host))
            for content in (head, *[part] * 7):
                secured.sendall(content)
    assert memory_of(federation) - before < 60
    for connection in calls:
        connection.close()


def test_idle_connections_are_not_kept(federation: Live) -> None:
    """Nine hundred were, once."""
    address = Address.parse(federation.kit.federation.server)
    idle = []
    for _ in range(300):
        with suppress(OSError):
            idle.append(socket.create_connection((address.host, address.port), 20))
    assert all(ended(connection) for connection in idle)
    for connection in idle:
        connection.close()
    time.sleep(3)  # until as many new connections are allowed again


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def memory_of(federation: Live) -> float:
    """Megabytes of the SuperLink's process."""
    server = federation.processes["server"].pid
    children = [int(name) for name in Path(f"/proc/{server}/task/{server}/children").read_text().split()]
    [pages] = [int(Path(f"/proc/{child}/statm").read_text().split()[1]) for child in children]
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_the_port_of_a_local_server_is_for_this_machine(federation: Live) -> None:
    port = Address.parse(federation.kit.federation.server).port
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_site_whose_key_nobody_registered_is_refused(federation: Live, impostor: Path) -> None:
    shutil.rmtree(impostor / "keys")
    make_site_key(impostor / "keys", LAST)
    federation.start(LAST)
    told(federation, "not connected: ")
    federation.stop(LAST)
    *well, finding = find_engine("flower").check_site(federation.site_kit(LAST))
    assert all(found.ok for found in well)
    assert finding.what == "the server does not let this site in"


def test_a_site_with_another_sites_key_is_not_taken_for_itself(federation: Live, impostor: Path) -> None:
    shutil.copy(federation.place(SECOND) / "keys" / SECOND, impostor / "keys" / LAST)
    federation.start(LAST)
    told(federation, "not connected: ")  # the real one is there
    federation.stop(SECOND)
    wait_until(lambda: "connected\n" in federation.log(LAST).replace("not connected", ""), "it takes the other's place")
    out = federation.folder / "impostor-run"
    federation.run(out, rounds=1, federation__quorum=0.1, wait=5)
    reasons = {record["site"]: record.get("error") for record in records(out) if record["phase"] == "train"}
    assert reasons[FIRST] is None
    assert reasons[SECOND] == f"it answered in the name of '{LAST}'"
    assert reasons[LAST] == "not connected"
    federation.stop(LAST)
    federation.start(SECOND)
    federation.wait_until_connected(2)


def test_a_site_does_not_trust_a_server_of_another_authority(federation: Live, impostor: Path) -> None:
    make_authority(federation.folder / "other")
    shutil.copy(federation.folder / "other" / "ca.crt", impostor / "tls" / "ca.crt")
    federation.start(LAST)
    told(federation, "ertificate")


def test_an_expired_server_certificate_is_refused(tmp_path: Path) -> None:
    make_kits(tmp_path, "flower", [FIRST])
    issue_server_certificate(tmp_path / "authority", ["localhost"], tmp_path / "server" / "tls", days=-1)
    federation = Live(tmp_path)
    try:
        federation.start("server")
        federation.start(FIRST)
        wait_until(lambda: "certificate has expired" in federation.log(FIRST), "it is refused")
    finally:
        for name in list(federation.processes):
            federation.kill(name)


def test_plain_http_gets_no_answer(federation: Live) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{federation.kit.federation.server}/v1/fleet/pull-messages", timeout=5)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "//v1/control/list-runs",
        "/docs",
        "/openapi.json",
        "/health",
    ],
)
def test_whoever_reaches_the_port_reaches_nothing_but_the_fleet(federation: Live, path: str) -> None:
    client, server = ways(federation)
    with client:
        for method in ("GET", "POST"):
            answer = client.send(client.build_request(method, server, extensions={"target": path.encode()}))
            assert answer.status_code in (400, 404), (method, answer.status_code)


def test_a_request_without_a_signature_is_refused(federation: Live) -> None:
    client, server = ways(federation)
    headers = {"content-type": "application/x-protobuf"}
    with client:
        for call in ("pull-messages", "push-messages", "push-object", "pull-object", "activate-node", "get-run"):
            answer = client.post(f"{server}/v1/fleet/{call}", content=b"", headers=headers)
            assert answer.status_code == 401, call
            answer = client.post(f"{server}/v1/fleet/{call}", content=b"", headers=headers | named(federation))
            assert answer.status_code in (400, 401, 415), call


def test_a_body_that_is_no_messages_is_refused_before_it_is_read(federation: Live) -> None:
    client, server = ways(federation)
    with client:
        answer = client.post(f"{server}/v1/fleet/push-object", content=b"x" * 17 * 2**20, headers=named(federation))
        assert answer.status_code == 413
        answer = client.post(f"{server}/v1/fleet/push-object", content=iter([b"x" * 1000]), headers=named(federation))
        assert answer.status_code == 411


def test_a_site_reads_and_answers_only_what_is_its_own(federation: Live) -> None:
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PullObjectRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    from harmofl.deployment.flower.addresses import running_address
    from harmofl.deployment.flower.identities import client_context, read_key
    from harmofl.deployment.flower.runtime.run import open_run
    from harmofl.deployment.flower.server import open_superlink, read_site_keys

    kit = federation.kit
    key = read_key(federation.place(FIRST) / "keys" / FIRST)
    signed, tls = NodeAuthHttpInterceptor(key, key.public_key()), client_context(authority_of(federation), key)
    with (
        open_run(open_superlink(kit, running_address(kit))) as mailbox,
        FleetHttpClient(f"https://{kit.federation.server}", interceptors=[signed], verify=tls) as client,
    ):
        nodes = {site: mailbox.connections()[key].node for site, key in read_site_keys(kit).items() if site != LAST}
        run = TaskIdentity.run_id

        def status(call: object, request: object) -> int:
            try:
                call(request)  # type: ignore[operator]
            except httpx.HTTPStatusError as error:
                return error.response.status_code
            return 200

        def forged(source: int, reply_to: str = "") -> PushMessagesRequest:
            metadata = Metadata(run_id=run, src_node_id=source, dst_node_id=1, reply_to_message_id=reply_to, ttl=60)
            message = Message(metadata=metadata)
            node = Node(node_id=nodes[FIRST])
            return PushMessagesRequest(node=node, messages_list=[message], message_object_trees=[ObjectTree()])

        other = Node(node_id=nodes[SECOND])
        assert status(client.PullMessages, PullMessagesRequest(node=other)) == 401
        assert status(client.PullObject, PullObjectRequest(node=other, run_id=run, object_id="0" * 64)) == 401
        assert status(client.PushMessages, forged(nodes[SECOND], reply_to="0" * 64)) == 403
        assert status(client.PushMessages, forged(1)) == 403, "no site sends requests in the server's name"
        assert status(client.PullMessages, PullMessagesRequest(node=Node(node_id=nodes[FIRST]))) == 200


def test_logs_and_processes_tell_no_key(federation: Live) -> None:
    secrets = [
        *(federation.place(site) / "keys" / site for site in THREE),
        federation.folder / "server" / "tls" / "server.key",
        federation.folder / "server" / "engine" / "secret",
    ]
    logs = b"".join(path.read_bytes() for path in federation.folder.rglob("*.log"))
    for secret in secrets:
        content = secret.read_bytes()
        lines = [line for line in content.splitlines() if len(line) > 30 and not line.startswith(b"-----")] or [content]
        assert not any(line in logs for line in lines), secret
        assert secret.stat().st_mode & 0o077 == 0
