"""What `harmofl deploy check` says of FLARE's part, in plain words."""

import socket
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="harmofl[nvflare] is not installed")

from flare_kits import federation, write_kits

from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.nvflare.checks import check_server, check_site
from harmofl.deployment.nvflare.names import relay_socket
from harmofl.deployment.relay import listen


@pytest.fixture
def server(tmp_path: Path) -> ServerKit:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    write_kits(tmp_path, federation(["A"], port=port))
    return ServerKit.open(tmp_path / "server")


def test_a_server_that_is_not_started_is_no_mistake(server: ServerKit) -> None:
    (finding,) = check_server(server)
    assert finding.ok
    assert "not started" in finding.what


def test_a_server_that_runs_is_said_to(server: ServerKit) -> None:
    with listen(relay_socket(server.folder)):
        (finding,) = check_server(server)
    assert finding.ok
    assert "is running" in finding.what


def test_another_programs_port_is_found(server: ServerKit) -> None:
    with socket.create_server(("127.0.0.1", server.federation.port)):
        (finding,) = check_server(server)
    assert not finding.ok
    assert "taken" in finding.what


def test_a_site_without_a_certificate_is_not_welcome(server: ServerKit) -> None:
    (finding,) = check_site(SiteKit.open(server.folder.parent / "sites" / "A"))
    assert not finding.ok
    assert "renew" in finding.hint
