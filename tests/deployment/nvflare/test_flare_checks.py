"""What `harmofl deploy check` says of FLARE's part, in plain words."""

import socket
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="harmofl[nvflare] is not installed")

from flare_kits import federation, write_kits

from harmofl.deployment.kits import ServerKit
from harmofl.deployment.nvflare.checks import is_running, is_welcome
from harmofl.deployment.nvflare.names import relay_socket, workspace
from harmofl.deployment.nvflare.relay import listen
from harmofl.deployment.tls.address import Address


@pytest.fixture
def server(tmp_path: Path) -> ServerKit:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    write_kits(tmp_path, federation(["A"], port=port))
    return ServerKit.open(tmp_path / "server")


def test_a_server_runs_when_it_takes_runs(server: ServerKit) -> None:
    assert not is_running(server)
    with listen(relay_socket(server.folder)):
        assert is_running(server)


def test_a_site_without_a_certificate_is_not_welcome(server: ServerKit) -> None:
    address = Address.parse(server.federation.server)
    assert not is_welcome(address, workspace(server.folder.parent / "sites" / "A") / "startup")
