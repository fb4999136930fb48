"""Who has no right to be in a federation on NVIDIA FLARE is not, and who is in it has no more rights than it needs."""

import json
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="harmofl[nvflare] is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from federations import Live, live, make_kits, wait_until
from flare_parties import program

from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import FEDERATION, ServerKit, write_part
from harmofl.deployment.nvflare.checks import is_welcome
from harmofl.deployment.tls.address import Address
from runs import SITES

pytestmark = pytest.mark.engines

HONEST, STRANGER, BORROWER, EXPIRED, PLAIN = SITES
STARTUP = Path("engine/startup")
PATIENCE = 25.0
"""Seconds in which an honest site would long be connected."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nvflare")
    make_kits(made, "nvflare", SITES)
    return made


@pytest.fixture(scope="module")
def federation(folder: Path) -> Iterator[Live]:
    with live(folder, "nvflare", SITES, start=[HONEST]) as started:
        started.wait_until_connected(1)
        yield started


def connected(federation: Live) -> list[str]:
    """The sites that the server could ask now."""
    with find_engine("nvflare").connect(federation.kit) as transport:
        return sorted(transport._find_connected())  # type: ignore[attr-defined]


def startup(folder: Path, site: str) -> Path:
    return folder / "sites" / site / STARTUP


def expire(folder: Path, site: str) -> None:
    """A certificate of the right authority for the right name, of yesterday."""
    kept = json.loads((folder / "authority/nvflare/cert.json").read_text())
    authority = serialization.load_pem_private_key(kept["root_pri_key"].encode(), None)
    path = startup(folder, site) / "client.crt"
    old = x509.load_pem_x509_certificate(path.read_bytes())
    builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number)
    today = datetime.now(UTC)
    builder = builder.not_valid_before(today - timedelta(days=9)).not_valid_after(today - timedelta(days=1))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    signed = builder.sign(authority, hashes.SHA256())  # type: ignore[arg-type]
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def speak_plainly(folder: Path, site: str) -> None:
    path = startup(folder, site) / "fed_client.json"
    configuration = json.loads(path.read_text())
    configuration["client"]["connection_security"] = "clear"
    path.write_text(json.dumps(configuration))


def test_nobody_gets_in_without_a_certificate_of_their_own(
    federation: Live, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    make_kits(elsewhere, "nvflare", [STRANGER])
    spoiled = [STRANGER, BORROWER, EXPIRED, PLAIN]
    kept = {site: shutil.copytree(startup(folder, site), elsewhere / "kept" / site) for site in spoiled}
    for name in ("client.crt", "client.key"):
        shutil.copy(startup(elsewhere, STRANGER) / name, startup(folder, STRANGER) / name)
        shutil.copy(startup(folder, HONEST) / name, startup(folder, BORROWER) / name)
    expire(folder, EXPIRED)
    speak_plainly(folder, PLAIN)
    for site in spoiled:
        federation.start(site)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert connected(federation) == [HONEST]
        time.sleep(1)
    known = Address.parse(federation.kit.federation.server)
    assert is_welcome(known, startup(folder, HONEST))
    assert not is_welcome(known, startup(folder, STRANGER))
    assert not is_welcome(known, startup(folder, EXPIRED))
    for site in spoiled:  # the same sites with what is theirs: it was the certificates that kept them out
        federation.stop(site)
        shutil.rmtree(startup(folder, site))
        shutil.copytree(kept[site], startup(folder, site))
        federation.start(site)
    federation.wait_until_connected(len(SITES))


def test_the_port_speaks_to_nobody_without_a_certificate(federation: Live, folder: Path) -> None:
    known = Address.parse(federation.kit.federation.server)
    with socket.create_connection((known.host, known.port), timeout=10) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert refused(plain)
    context = ssl.create_default_context(cafile=startup(folder, HONEST) / "rootCA.pem")
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection((known.host, known.port), timeout=10)
    with plain, context.wrap_socket(plain, server_hostname=known.host) as secure:  # it has no certificate to show
        assert refused(secure)


def refused(connection: socket.socket) -> bool:
    """Whether the other side hangs up instead of answering as HTTP/2 does."""
    try:
        return connection.recv(9)[3:4] != bytes([4])
    except OSError:
        return True


NOSY = """
import json, sys, threading
from nvflare.apis.event_type import EventType
from nvflare.fuel.f3.message import Message
from harmofl.deployment.nvflare import node, site, runtime
from harmofl.federation.messages import Request, encode

def snoop(cell, kit):
    tried = {}
    request = encode(Request("0" * 32, "describe", 0, settings={}))
    for channel, topic, target, body in [
        ("harmofl", "ask", "hospital-0", request),
        ("harmofl", "ask", "server", request),
        ("_net_manager", "stop", "hospital-0", b""),
        ("_net_manager", "peers", "server", b""),
        ("admin", "sys.shell", "hospital-0", b""),
        ("hci_channel", "command", "server", b""),
        ("aux_communication", "fed.event", "server", b""),
        ("task", "get_task", "server", b""),
    ]:
        reply = cell.send_request(
            channel=channel, topic=topic, target=target, request=Message({}, body), timeout=3.0, optional=True
        )
        tried[f"{channel} {topic} {target}"] = [str(reply.get_header("cn__return_code")), repr(reply.payload)]
    (kit / "tried.part").write_text(json.dumps(tried))
    (kit / "tried.part").rename(kit / "tried.json")

class Nosy(site.SiteDesk):
    def handle_event(self, event_type, fl_ctx):
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.SYSTEM_START:
            arguments = (fl_ctx.get_engine().get_cell(), self._queue._participant.kit.folder)
            threading.Thread(target=snoop, args=arguments, daemon=True).start()

site.SiteDesk = Nosy
node.main(*sys.argv[1:])
"""


def test_strangers_who_connect_and_say_nothing_are_dropped(federation: Live, folder: Path) -> None:
    address = Address.parse(federation.kit.federation.server)
    unfinished = bytes.fromhex("1603010200010001fc0303") + bytes(100)  # the beginning of a TLS greeting
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=60)) for _ in range(200)
        ]
        for stranger in strangers[::2]:
            stranger.sendall(unfinished)
        assert is_welcome(address, startup(folder, HONEST))  # who has a certificate gets in meanwhile
        started = time.monotonic()
        for stranger in strangers:
            with suppress(ConnectionError):
                assert stranger.recv(1) == b""
        assert time.monotonic() - started < 45
    assert HONEST in connected(federation)


def test_a_site_can_ask_nobody_for_anything(federation: Live, folder: Path) -> None:
    """Neither for another site's update, nor the server for more than to be let in."""
    nosy = STRANGER
    if nosy in federation.processes:
        federation.stop(nosy)
    federation.start(nosy, program(NOSY))
    told = folder / "sites" / nosy / "tried.json"
    wait_until(told.exists, "the nosy site has tried", federation.processes[nosy])
    tried = json.loads(told.read_text())
    assert len(tried) == 8
    assert {what for what, (code, payload) in tried.items() if code == "ok" or payload != "None"} == set()
    assert HONEST in connected(federation)
    assert "may not be asked" in federation.log("server")
    federation.stop(nosy)


BAD_SERVER = """
import io, json, socket, sys, threading, time, zipfile
from nvflare.apis.event_type import EventType
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as Order
from nvflare.private.defs import RequestHeader, new_cell_message
from harmofl.deployment.nvflare import node, server

def job(marker):
    executor = {"path": "subprocess.Popen", "args": {"args": ["touch", str(marker)]}}
    config = {"format_version": 2, "executors": [{"tasks": ["train"], "executor": executor}], "components": []}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("config/config_fed_client.json", json.dumps(config))
        file.writestr("custom/evil.py", "print('evil')")
    return data.getvalue()

def connects(core, client):
    # Offers an address that the site, as FLARE has it, would connect to: here of this machine, or of any other.
    send = core._send_to_endpoint
    def lie(to_endpoint, message):
        if message.get_header(MessageHeaderKey.CONN_URL):
            message.set_header(MessageHeaderKey.FROM_CELL, "somebody")
        return send(to_endpoint, message)
    core._send_to_endpoint = lie
    with socket.create_server(("127.0.0.1", 0)) as listener:
        offer = Message({MessageHeaderKey.CONN_URL: f"tcp://127.0.0.1:{listener.getsockname()[1]}"}, b"")
        core.fire_and_forget("task", "heart_beat", client, offer, optional=True)
        listener.settimeout(8)
        try:
            listener.accept()[0].close()
            return True
        except TimeoutError:
            return False

def attack(engine, folder):
    told = {}
    deploy = Order(topic="train.deploy", body=job(folder / "marker"))
    meta = {"byoc": True, "job_id": "evil", "submitter_name": "a@b.org", "submitter_org": "x", "submitter_role": "lead"}
    deploy.set_header(RequestHeader.JOB_ID, "evil")
    deploy.set_header(RequestHeader.APP_NAME, "app")
    deploy.set_header(RequestHeader.JOB_META, meta)
    shell = Order(topic="sys.shell", body="pwd")
    for client in ("hospital-0", "hospital-4"):
        while engine.get_client_from_name(client) is None:
            time.sleep(0.2)
        time.sleep(1)
        for order in (deploy, shell):
            reply = engine.get_cell().send_request(
                channel="admin", topic=order.topic, target=client, request=new_cell_message({}, order), timeout=5.0
            )
            body = getattr(reply.payload, "body", None)
            told[f"{client} {order.topic}"] = [str(reply.get_header("cn__return_code")), str(body)]
        told[f"{client} connects"] = ["", str(connects(engine.get_cell().core_cell, client))]
    (folder / "told.part").write_text(json.dumps(told))
    (folder / "told.part").rename(folder / "told.json")

class Bad(server.ServerDesk):
    def handle_event(self, event_type, fl_ctx):
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=attack, args=(fl_ctx.get_engine(), self._folder), daemon=True).start()

server.ServerDesk = Bad
node.main(*sys.argv[1:])
"""
UNGUARDED = """
import sys
from harmofl.deployment.nvflare import node, runtime
runtime.guard_site = lambda cell, admit: None
runtime.remove_admin_commands = lambda engine: None
node.main(*sys.argv[1:])
"""


def test_a_server_that_sends_a_job_or_a_command_is_refused_at_the_site(federation: Live, folder: Path) -> None:
    """FLARE alone would take them, as a site without our guard shows."""
    unguarded = PLAIN
    if unguarded in federation.processes:
        federation.stop(unguarded)
    federation.stop("server")
    federation.start("server", program(BAD_SERVER))
    federation.start(unguarded, program(UNGUARDED))
    told = folder / "server" / "told.json"
    wait_until(told.exists, "the server has tried", federation.processes["server"])
    answers = json.loads(told.read_text())
    try:
        assert {what: answers[what][1] for what in answers if what.startswith(HONEST)} == {
            f"{HONEST} train.deploy": "None",
            f"{HONEST} sys.shell": "None",
            f"{HONEST} connects": "False",
        }
        assert answers[f"{unguarded} connects"][1] == "True"
        assert answers[f"{HONEST} train.deploy"][0] != "ok"
        assert answers[f"{unguarded} sys.shell"][1].strip() == str(folder / "sites" / unguarded / "engine")
        assert not list((folder / "sites" / HONEST / "engine").glob("**/evil*"))
        assert "may not be asked" in federation.log(HONEST)
    finally:
        federation.stop("server")
        federation.stop(unguarded)
        federation.start("server")


def test_a_site_that_was_removed_is_out_at_once(federation: Live, folder: Path) -> None:
    wait_until(lambda: is_up(federation), "the server is back", federation.processes["server"])
    if BORROWER not in federation.processes:
        federation.start(BORROWER)
    wait_until(lambda: BORROWER in connected(federation), "the site is there")
    known = ServerKit.open(folder / "server").federation
    fewer = known.model_copy(update={"sites": [site for site in known.sites if site != BORROWER]})
    write_part(folder / "server" / FEDERATION, fewer)
    try:
        wait_until(lambda: BORROWER not in connected(federation), "it is out", seconds=10)
        wait_until(lambda: "is not in the federation" in federation.log("server"), "it is refused", seconds=20)
    finally:
        write_part(folder / "server" / FEDERATION, known)


def is_up(federation: Live) -> bool:
    return find_engine("nvflare").is_running(federation.kit)


def test_logs_hold_no_key(federation: Live, folder: Path) -> None:
    lines = {
        line
        for path in [*folder.rglob("*.key"), folder / "authority/nvflare/cert.json"]
        for line in path.read_text().replace("\\n", "\n").splitlines()
        if len(line) == 64
    }
    logs = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".txt", ".log", ".json")]
    logs = [path for path in logs if "authority" not in path.parts and "startup" not in path.parts]
    assert lines
    assert any(path.name == "log.txt" for path in logs)
    assert [path for path in logs if any(line in path.read_text(errors="replace") for line in lines)] == []
