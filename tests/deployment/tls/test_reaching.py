"""The way to the server: what stands in it is said in words, with what to do."""

import socket
from pathlib import Path
from typing import Any

import pytest
from listeners import HOST, listening
from parties import free_port

from harmofl.deployment.engine import Finding
from harmofl.deployment.tls import reaching
from harmofl.deployment.tls.address import Address
from harmofl.deployment.tls.certificates import issue_server_certificate, make_authority
from harmofl.deployment.tls.reaching import reach


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("authority"))


def test_the_federations_server_is_recognized(authority: Path, tmp_path: Path) -> None:
    issue_server_certificate(authority, [HOST], tmp_path)
    with listening(tmp_path) as port:
        found = reach(Address(HOST, port), authority / "ca.crt")
    assert found == Finding(True, f"{HOST}:{port} can be reached and is the federation's server")


def test_an_expired_certificate_is_called_so(authority: Path, tmp_path: Path) -> None:
    issue_server_certificate(authority, [HOST], tmp_path, days=0)
    with listening(tmp_path) as port:
        found = reach(Address(HOST, port), authority / "ca.crt")
    assert not found.ok
    assert "the server's certificate has expired" in found.what
    assert "renew" in found.hint


def test_a_certificate_for_another_name_is_called_so(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue_server_certificate(authority, ["fl.example.org"], tmp_path)
    with listening(tmp_path) as port:
        found = reach(Address("other.example.org", port), authority / "ca.crt", at=HOST)
        by_address = reach(Address("127.0.0.2", port), authority / "ca.crt", at=HOST)
    assert found.what.endswith("certificate is not for other.example.org")
    assert by_address.what.endswith("certificate is not for 127.0.0.2")


def test_another_authoritys_certificate_is_a_warning_to_stop(authority: Path, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other")
    issue_server_certificate(other, [HOST], tmp_path / "tls")
    with listening(tmp_path / "tls") as port:
        found = reach(Address(HOST, port), authority / "ca.crt")
    assert "not signed by this federation's authority" in found.what
    assert "stop here" in found.hint


def test_a_program_without_tls_is_called_so(authority: Path) -> None:
    with listening(None) as port:
        found = reach(Address(HOST, port), authority / "ca.crt")
    assert not found.ok
    assert "does not speak TLS" in found.what


def test_a_program_that_says_nothing_is_not_waited_for(authority: Path) -> None:
    with socket.create_server((HOST, 0)) as silent:
        found = reach(Address(HOST, silent.getsockname()[1]), authority / "ca.crt", seconds=0.2)
    assert not found.ok
    assert "does not answer with TLS" in found.what


def test_nothing_listening_is_called_so(authority: Path) -> None:
    found = reach(Address(HOST, free_port()), authority / "ca.crt")
    assert "nothing listens there" in found.what
    assert "start the server" in found.hint


def resolving_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let the server's name have these addresses."""
    usual = socket.getaddrinfo

    def resolve(host: str, *args: Any, **more: Any) -> list[Any]:
        named = addresses if host == "fl.example.org" else [host]
        return [found for address in named for found in usual(address, *args, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def test_every_address_of_a_name_is_tried(authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issue_server_certificate(authority, ["fl.example.org"], tmp_path)
    with listening(tmp_path) as port, monkeypatch.context() as patch:
        resolving_to(patch, "127.0.0.2", HOST)  # at the first of which nothing listens
        found = reach(Address("fl.example.org", port), authority / "ca.crt")
    assert found == Finding(True, f"fl.example.org:{port} can be reached and is the federation's server")


def test_of_several_addresses_the_most_telling_is_told_of(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = {"10.1.2.3": TimeoutError(), "10.1.2.4": ConnectionRefusedError(), "10.1.2.5": OSError(101, "no way")}

    def fail(address: tuple[str, int], seconds: float) -> socket.socket:
        raise failures[address[0]]

    monkeypatch.setattr(socket, "create_connection", fail)
    resolving_to(monkeypatch, *failures)
    assert "connection refused by 10.1.2.4" in reach(Address("fl.example.org", 8443), authority / "ca.crt").what
    resolving_to(monkeypatch, "10.1.2.5", "10.1.2.3")
    assert "no answer from 10.1.2.3" in reach(Address("fl.example.org", 8443), authority / "ca.crt").what


def test_a_connection_that_is_swallowed_is_called_a_firewall(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swallowed(*args: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", swallowed)
    found = reach(Address(HOST, 8443), authority / "ca.crt", seconds=3)
    assert "no answer from 127.0.0.1 within 3 s" in found.what
    assert "firewall" in found.hint


def test_no_way_at_all_is_called_so(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object) -> socket.socket:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert "cannot be reached (Network is unreachable)" in reach(Address(HOST, 8443), authority / "ca.crt").what


def test_a_name_without_an_address_is_called_so(authority: Path) -> None:
    found = reach(Address("no-such-host.invalid", 8443), authority / "ca.crt")
    assert "no-such-host.invalid has no address" in found.what
    assert "DNS" in found.hint


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path, authority: Path) -> None:
    issue_server_certificate(authority, [HOST], tmp_path)
    (tmp_path / "ca.crt").write_text("broken")
    with listening(tmp_path) as port:
        assert "ca.crt: not a certificate" in reach(Address(HOST, port), tmp_path / "ca.crt").what


def test_a_handshake_does_not_wait_for_ever() -> None:
    assert reaching.SECONDS <= 10
