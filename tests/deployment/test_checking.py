"""`harmofl deploy check`: every finding in words that say what to do."""

import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from parties import SITES, Quiet, free_port, make, quiet_engine

from folders import segmentation_folder
from harmofl.deployment import checking, reaching
from harmofl.deployment.certificates import issue_server_certificate, make_authority
from harmofl.deployment.checking import check_kit
from harmofl.deployment.engines import Finding
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.reaching import reach

HOST = "127.0.0.1"
CLOSED = "x" * 300
"""A name that no file can have: looking at it fails as looking into a folder of another user's does."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Quiet:
    return quiet_engine(monkeypatch)


@contextmanager
def listening(tls: Path | None) -> Iterator[int]:
    """A server that shakes hands with the certificate in a folder, or answers anything with plain words."""
    with socket.create_server((HOST, 0)) as listener:
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "server.crt", tls / "server.key")
        thread = threading.Thread(target=answer, args=(listener, context), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=5)


def answer(listener: socket.socket, context: ssl.SSLContext | None) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                if context:
                    context.wrap_socket(connection, server_side=True).close()
                else:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("authority"))


# The way to the server


def test_the_federations_server_is_recognized(authority: Path, tmp_path: Path) -> None:
    issue_server_certificate(authority, [HOST], tmp_path)
    with listening(tmp_path) as port:
        found = reach(HOST, port, authority / "ca.crt")
    assert found == Finding(True, f"{HOST}:{port} can be reached and is the federation's server")


def test_an_expired_certificate_is_called_so(authority: Path, tmp_path: Path) -> None:
    issue_server_certificate(authority, [HOST], tmp_path, days=0)
    with listening(tmp_path) as port:
        found = reach(HOST, port, authority / "ca.crt")
    assert not found.ok
    assert "the server's certificate has expired" in found.what
    assert "renew" in found.hint


def test_a_certificate_for_another_name_is_called_so(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue_server_certificate(authority, ["fl.example.org"], tmp_path)
    with listening(tmp_path) as port:
        found = reach("other.example.org", port, authority / "ca.crt", at=HOST)
        by_address = reach("127.0.0.2", port, authority / "ca.crt", at=HOST)
    assert found.what.endswith("certificate is not for other.example.org")
    assert by_address.what.endswith("certificate is not for 127.0.0.2")


def test_another_authoritys_certificate_is_a_warning_to_stop(authority: Path, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other")
    issue_server_certificate(other, [HOST], tmp_path / "tls")
    with listening(tmp_path / "tls") as port:
        found = reach(HOST, port, authority / "ca.crt")
    assert "not signed by this federation's authority" in found.what
    assert "do not go on" in found.hint


def test_a_program_without_tls_is_called_so(authority: Path) -> None:
    with listening(None) as port:
        found = reach(HOST, port, authority / "ca.crt")
    assert not found.ok
    assert "does not speak TLS" in found.what


def test_a_program_that_says_nothing_is_not_waited_for(authority: Path) -> None:
    with socket.create_server((HOST, 0)) as silent:
        found = reach(HOST, silent.getsockname()[1], authority / "ca.crt", seconds=0.2)
    assert not found.ok
    assert "does not answer with TLS" in found.what


def test_nothing_listening_is_called_so(authority: Path) -> None:
    found = reach(HOST, free_port(), authority / "ca.crt")
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
        found = reach("fl.example.org", port, authority / "ca.crt")
    assert found == Finding(True, f"fl.example.org:{port} can be reached and is the federation's server")


def test_of_several_addresses_the_most_telling_is_told_of(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = {"10.1.2.3": TimeoutError(), "10.1.2.4": ConnectionRefusedError(), "10.1.2.5": OSError(101, "no way")}

    def fail(address: tuple[str, int], seconds: float) -> socket.socket:
        raise failures[address[0]]

    monkeypatch.setattr(socket, "create_connection", fail)
    resolving_to(monkeypatch, *failures)
    assert "connection refused by 10.1.2.4" in reach("fl.example.org", 8443, authority / "ca.crt").what
    resolving_to(monkeypatch, "10.1.2.5", "10.1.2.3")
    assert "no answer from 10.1.2.3" in reach("fl.example.org", 8443, authority / "ca.crt").what


def test_a_connection_that_is_swallowed_is_called_a_firewall(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swallowed(*args: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", swallowed)
    found = reach(HOST, 8443, authority / "ca.crt", seconds=3)
    assert "no answer from 127.0.0.1 within 3 s" in found.what
    assert "firewall" in found.hint


def test_no_way_at_all_is_called_so(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object) -> socket.socket:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert "cannot be reached (Network is unreachable)" in reach(HOST, 8443, authority / "ca.crt").what


def test_a_name_without_an_address_is_called_so(authority: Path) -> None:
    found = reach("no-such-host.invalid", 8443, authority / "ca.crt")
    assert "no-such-host.invalid has no address" in found.what
    assert "DNS" in found.hint


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path, authority: Path) -> None:
    issue_server_certificate(authority, [HOST], tmp_path)
    (tmp_path / "ca.crt").write_text("broken")
    with listening(tmp_path) as port:
        assert "ca.crt: not a certificate" in reach(HOST, port, tmp_path / "ca.crt").what


# A whole kit


def problems(folder: Path) -> list[str]:
    return [finding.what for finding in check_kit(folder) if not finding.ok]


@pytest.fixture
def kits(tmp_path: Path, engine: Quiet) -> Path:
    return make(tmp_path / "kits", server=f"{HOST}:{free_port()}")


def test_all_is_well_at_a_site_whose_server_runs(
    tmp_path: Path, engine: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority(tmp_path / "authority")
    issue_server_certificate(authority, [HOST], tmp_path / "tls")
    with listening(tmp_path / "tls") as port:
        kits = make(tmp_path / "kits", server=f"{HOST}:{port}")
        (kits / "sites" / SITES[0] / "tls" / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
        found = list(check_kit(kits / "sites" / SITES[0]))
    assert [finding.what for finding in found if not finding.ok] == []
    assert "the engine is well" in [finding.what for finding in found]
    assert "histology: synthetic images of hospital-0, to try the federation" in [finding.what for finding in found]


def test_a_server_that_is_not_reached_is_said_once(kits: Path, engine: Quiet) -> None:
    engine.findings = [Finding(False, "the engine says the same")]
    (only,) = problems(kits / "sites" / SITES[0])
    assert "nothing listens there" in only


def test_a_server_with_a_free_port_is_well(kits: Path) -> None:
    found = list(check_kit(kits / "server"))
    assert [finding.what for finding in found if not finding.ok] == []
    assert any(re.fullmatch(r"port \d+ is free for the server", finding.what) for finding in found)


def test_a_server_that_runs_is_well(tmp_path: Path, engine: Quiet) -> None:
    authority = make_authority(tmp_path / "kits-authority")
    issue_server_certificate(authority, ["localhost"], tmp_path / "tls")
    with listening(tmp_path / "tls") as port:
        kits = make(tmp_path / "kits", server=f"localhost:{port}")
        (kits / "server" / "tls" / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
        found = [finding.what for finding in check_kit(kits / "server") if finding.ok]
    assert f"the server listens on port {port}" in found


@pytest.mark.parametrize(
    ("away", "words"),
    [(set(), "connected: hospital-0, hospital-1, hospital-2"), ({"hospital-1"}, "2 of 3 sites are connected; missing")],
)
def test_a_server_that_runs_says_who_is_connected(tmp_path: Path, engine: Quiet, away: set[str], words: str) -> None:
    engine.away = away
    kits = make(tmp_path / "kits")
    assert checking.check_connected(ServerKit.open(kits / "server")).what.startswith(words)


def test_who_takes_part_in_a_run_is_its_own_to_say(tmp_path: Path, engine: Quiet) -> None:
    kit = ServerKit.open(make(tmp_path / "kits") / "server")
    with kit.in_use():
        assert "a run is going on" in checking.check_connected(kit).what


def test_a_federation_that_another_user_has_in_use_is_a_finding(tmp_path: Path, engine: Quiet) -> None:
    kit = ServerKit.open(make(tmp_path / "kits") / "server")
    (kit.folder / ".run.lock").mkdir()  # as little to be opened for writing as a file of another user's
    found = checking.check_connected(kit)
    assert not found.ok
    assert found.what == f"{kit.folder / '.run.lock'}: Is a directory"


def test_a_port_that_another_program_has_is_called_so(tmp_path: Path, engine: Quiet) -> None:
    with listening(None) as port:
        kits = make(tmp_path / "kits", server=f"localhost:{port}")
        assert problems(kits / "server") == [f"port {port} is taken, and not by this federation's server"]


@pytest.mark.skipif(os.name == "nt", reason="modes of files are a matter of POSIX")
def test_a_key_that_others_can_read_is_named(kits: Path) -> None:
    (kits / "server" / "tls" / "server.key").chmod(0o640)
    assert problems(kits / "server") == ["tls/server.key: other users can read this private key"]


def test_a_key_of_another_user_is_named(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert problems(kits / "server") == ["tls/server.key belongs to another user"]


@pytest.mark.parametrize("source", [f"sites/{SITES[1]}/keys/{SITES[1]}", "authority/ca.key"])
def test_somebody_elses_key_is_named(kits: Path, source: str) -> None:
    there = kits / "server" / "keys" / "copied"
    there.write_bytes((kits / source).read_bytes())
    there.chmod(0o600)
    assert problems(kits / "server") == ["keys/copied is a private key that is not this party's"]


def test_a_kit_without_its_key_is_not_whole(kits: Path) -> None:
    (kits / "server" / "tls" / "server.key").unlink()
    assert problems(kits / "server")[0].startswith("no private key here")


@pytest.mark.parametrize(
    ("days", "ok", "words"), [(400, True, "399 days"), (20, True, "19 days"), (0, False, "expired on")]
)
def test_a_certificate_is_told_of_before_it_expires(kits: Path, days: int, ok: bool, words: str) -> None:
    issue_server_certificate(kits / "authority", [HOST], kits / "server" / "tls", days)
    (found,) = (finding for finding in check_kit(kits / "server") if finding.what.startswith("tls/server.crt"))
    assert found.ok is ok
    assert words in found.what
    assert bool(found.hint) == (days < 30)


def test_a_certificate_of_the_future_is_the_clocks_fault(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Past(checking.datetime):  # type: ignore[name-defined,misc]
        @classmethod
        def now(cls, zone: object = None) -> "Past":
            return cls(2001, 1, 1, tzinfo=checking.UTC)  # type: ignore[attr-defined]

    monkeypatch.setattr(checking, "datetime", Past)
    found = [finding for finding in check_kit(kits / "server") if "is valid from" in finding.what]
    assert len(found) == 2
    assert not any(finding.ok for finding in found)
    assert "clock" in found[0].hint


@pytest.mark.parametrize(
    ("name", "ok", "words"),
    [
        ("harmofl", False, "harmofl 9.9, here"),
        ("engine", False, "flower 9.9, here"),
        ("torch", True, "the kit was made with 9.9"),
    ],
)
def test_other_versions_are_named(kits: Path, name: str, ok: bool, words: str) -> None:
    path = kits / "server" / "versions.toml"
    path.write_text(re.sub(rf'^{name} = ".*"', f'{name} = "9.9"', path.read_text(), flags=re.MULTILINE))
    (found,) = (finding for finding in check_kit(kits / "server") if "9.9" in finding.what)
    assert (found.ok, words in found.what, bool(found.hint)) == (ok, True, True)


def test_a_folder_that_is_no_kit_is_one_finding(tmp_path: Path) -> None:
    (found,) = check_kit(tmp_path)
    assert not found.ok
    assert "holds no federation.toml" in found.what


def test_a_folder_that_cannot_be_entered_is_one_finding(tmp_path: Path) -> None:
    (found,) = check_kit(tmp_path / CLOSED)
    assert (found.ok, found.what) == (False, f"{tmp_path / CLOSED}: File name too long")


@pytest.mark.parametrize(("name", "words"), [("cache", ""), ("data", "histology: ")])
def test_a_place_that_cannot_be_looked_at_is_a_finding(kits: Path, name: str, words: str) -> None:
    path = kits / "sites" / SITES[0] / "site.toml"
    path.write_text(re.sub(rf'^{name} = ".*"', f'{name} = "{CLOSED}"', path.read_text(), flags=re.MULTILINE))
    assert f"{words}{path.parent / CLOSED}: File name too long" in problems(path.parent)


def test_a_wrong_setting_is_one_finding(kits: Path) -> None:
    path = kits / "sites" / SITES[0] / "site.toml"
    path.write_text(path.read_text().replace('device = "auto"', 'device = "gpu"'))
    (found,) = check_kit(path.parent)
    assert "device = 'gpu': must be 'auto', 'cpu' or 'cuda'" in found.what


def test_an_engine_that_fails_is_a_finding(kits: Path, engine: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(kit: object) -> Iterator[Finding]:
        raise ValueError("what is this")

    monkeypatch.setattr(engine, "check_server", broken)
    assert problems(kits / "server") == ["flower could not be asked (ValueError: what is this)"]


def test_a_full_disk_is_told_of(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = checking.shutil.disk_usage("/")
    monkeypatch.setattr(checking.shutil, "disk_usage", lambda place: usage._replace(free=2**29))
    assert problems(kits / "server") == ["0.5 GB of disk are free"]


def test_a_folder_that_cannot_be_written_is_named(kits: Path) -> None:
    site = kits / "sites" / SITES[0]
    (site / "state").write_text("a file")
    assert any("state = 'state' (site.toml): cannot be written" in what for what in problems(site))


# The images


def site_with(tmp_path: Path, data: str, tasks: list[str]) -> Path:
    kits = make(tmp_path / "kits", ["site-0"], server=f"{HOST}:{free_port()}", tasks=tasks, synthetic=False)
    path = kits / "sites" / "site-0" / "site.toml"
    path.write_text(path.read_text().replace("/path/to/images", data))
    return path.parent


def of_images(folder: Path, task: str) -> list[Finding]:
    return [finding for finding in check_kit(folder) if finding.what.startswith(task)]


def test_images_are_looked_at(tmp_path: Path, engine: Quiet) -> None:
    data = segmentation_folder(tmp_path / "images", sites=2)
    found = of_images(site_with(tmp_path, str(data), ["segmentation"]), "segmentation")
    assert found[0].ok
    assert re.fullmatch(r"segmentation: \d+ images can be loaded", found[0].what)


def test_broken_images_are_named_with_the_command_that_tells_more(tmp_path: Path, engine: Quiet) -> None:
    data = segmentation_folder(tmp_path / "images", sites=1)
    (data / "site-0" / "p1-0.png").write_bytes(b"broken")
    found = of_images(site_with(tmp_path, str(data), ["segmentation"]), "segmentation")
    assert not found[0].ok
    assert "1 problem: site-0/p1-0.png" in found[0].what
    assert f"harmofl data check --task segmentation --data {data}" in found[0].hint


def test_images_that_are_not_this_tasks_are_told_of_task_by_task(tmp_path: Path, engine: Quiet) -> None:
    data = segmentation_folder(tmp_path / "images", sites=1)
    folder = site_with(tmp_path, str(data), ["segmentation", "histology"])
    assert of_images(folder, "segmentation")[0].ok
    assert not of_images(folder, "histology")[0].ok


def test_a_folder_to_be_filled_in_is_named(tmp_path: Path, engine: Quiet) -> None:
    found = of_images(site_with(tmp_path, "/path/to/images", ["segmentation"]), "segmentation")
    assert "data = '/path/to/images': there is no such folder" in found[0].what
    assert "site.toml" in found[0].hint


def test_a_synthetic_site_that_there_is_not_is_named(tmp_path: Path, engine: Quiet) -> None:
    folder = site_with(tmp_path, "synthetic", ["histology"])
    assert SiteKit.open(folder).data is None
    assert "there is no synthetic hospital site-0 (hospital-0," in of_images(folder, "histology")[0].what


def test_many_problems_are_cut_short() -> None:
    assert checking.in_short(("a", "b")) == "2 problems: a; b"
    assert checking.in_short(tuple("abcde")) == "5 problems: a; b; c; and 2 more"


def test_a_handshake_does_not_wait_for_ever() -> None:
    assert reaching.SECONDS <= 10
