"""Who may watch a run over the network: readers, with their site's certificate; and they can do nothing else."""

import http.client
import json
import shutil
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from pathlib import Path

import pytest
from parties import free_port

from harmofl.deployment.accepting import accept
from harmofl.deployment.audit import audit_log
from harmofl.deployment.following import Follower, client_context
from harmofl.deployment.joining import install_certificate, make_own_request
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.provisioning import add_site, make_federation, make_kits, remove_site
from harmofl.deployment.reading import ReadersServer
from harmofl.deployment.revoking import revoke
from harmofl.errors import UsageError
from harmofl.reporting import live_server
from runs import train

READER, OTHER = "Aachen.1", "Boston"  # FLARE calls the first otherwise


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "first", rounds=1)
    return folder


@pytest.fixture(scope="module", params=["flower", "nvflare"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kits = tmp_path_factory.mktemp("made") / "kits"
    make_kits(make_federation(request.param, f"localhost:{free_port()}", [READER, OTHER]), kits, ["segmentation"])
    for name in (READER, OTHER):
        kit = SiteKit.open(kits / "sites" / name)
        accepted = accept(kits, make_own_request(kit).path, lambda site, number: True)
        install_certificate(kit, accepted.certificate)
    path = kits / "server" / "server.toml"
    path.write_text(path.read_text().replace("readers = []", f'readers = ["{READER}"]'))
    return kits


@pytest.fixture
def kits(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "kits")


@contextmanager
def serving(server: HTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def get(port: int, path: str = "/", method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode(errors="replace")
    connection.close()
    return answer.status, body


def test_what_a_page_may_do_at_a_site_is_not_the_servers_to_say(
    kits: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = live_server.POLICY
    monkeypatch.setattr(live_server, "POLICY", "default-src *")
    with serving(watching(kits, runs)) as port, serving(Follower(site(kits, READER), port)) as here:
        answer = urllib.request.urlopen(f"http://127.0.0.1:{here}/", timeout=30)
        assert answer.headers.get_all("Content-Security-Policy") == [own]


def watching(kits: Path, runs: Path) -> ReadersServer:
    return ReadersServer(ServerKit.open(kits / "server"), runs, "127.0.0.1", 0)


def site(kits: Path, name: str) -> SiteKit:
    return SiteKit.open(kits / "sites" / name)


def test_a_reader_sees_the_page_and_others_do_not(kits: Path, runs: Path) -> None:
    with serving(watching(kits, runs)) as port:
        with serving(Follower(site(kits, READER), port)) as here:
            status, page = get(here)
            assert (status, "first" in page) == (200, True)
            assert get(here, "/content?run=first")[0] == 200
            assert get(here, "/../audit.jsonl")[0] == 404
            assert get(here, method="POST")[0] == 501
        with serving(Follower(site(kits, OTHER), port)) as here:
            status, page = get(here)
            assert (status, "does not show its page to this site" in page) == (502, True)
    entries = [json.loads(line) for line in audit_log(kits / "server").read_text().splitlines()]
    assert [entry["who"] for entry in entries if entry["outcome"] == "let in to watch"] == [READER]
    assert any("is no reader" in entry["outcome"] for entry in entries)


def test_a_revoked_reader_sees_nothing_more(kits: Path, runs: Path) -> None:
    with serving(watching(kits, runs)) as port, serving(Follower(site(kits, READER), port)) as here:
        assert get(here)[0] == 200
        revoke(kits / "server", READER)
        assert get(here)[0] == 502


def test_a_revoked_key_sees_nothing_when_the_site_comes_back_with_another(kits: Path, runs: Path) -> None:
    if site(kits, READER).federation.engine == "nvflare":
        pytest.skip("with NVIDIA FLARE no site comes back under a revoked name")
    stolen = SiteKit.open(shutil.copytree(kits / "sites" / READER, kits / "stolen"))
    revoke(kits / "server", READER)
    remove_site(kits, READER)
    add_site(kits, READER)
    accepted = accept(kits, make_own_request(site(kits, READER)).path, lambda site, number: True)
    install_certificate(site(kits, READER), accepted.certificate)
    with serving(watching(kits, runs)) as port:
        with serving(Follower(site(kits, READER), port)) as here:
            assert get(here)[0] == 200
        with serving(Follower(stolen, port)) as there:
            assert get(there)[0] == 502


def test_who_has_no_certificate_or_is_too_slow_gets_nothing(kits: Path, runs: Path) -> None:
    context = client_context(site(kits, READER))
    plain = ssl.create_default_context(cadata=ssl.DER_cert_to_PEM_cert(context.get_ca_certs(binary_form=True)[0]))
    with (
        serving(watching(kits, runs)) as port,
        socket.create_connection(("127.0.0.1", port), 10),  # says nothing, and holds up nobody
    ):
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port, plain)
        assert ask(port, context) == 200


def ask(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("localhost", port, timeout=10, context=context)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_site_with_no_certificate_is_told(kits: Path) -> None:
    kit = site(kits, OTHER)
    name = "tls/site.crt" if kit.federation.engine == "flower" else "engine/startup/client.crt"
    (kit.folder / name).unlink()
    with pytest.raises(UsageError, match="no certificate of the authority"):
        Follower(kit, 1)


def test_without_the_servers_key_nothing_is_served(kits: Path, runs: Path) -> None:
    shutil.rmtree(kits / "server" / ("tls" if (kits / "server" / "tls").exists() else "engine"))
    with pytest.raises(UsageError, match="No such file"):
        watching(kits, runs)
