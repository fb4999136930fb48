"""`harmofl deploy check` on Flower, without a server."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="harmofl[flower] is not installed")

from harmofl.deployment.engine import Finding, find_engine
from harmofl.deployment.flower.children import free_port
from harmofl.deployment.flower.server import read_site_keys
from harmofl.deployment.kits import FEDERATION, SITE, Federation, ServerKit, SiteSettings, write_part
from harmofl.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    federation = Federation(engine="flower", server=f"localhost:{free_port()}", sites=["A", "B"])
    write_part(tmp_path / "server" / FEDERATION, federation)
    for site in federation.sites:
        write_part(tmp_path / "sites" / site / FEDERATION, federation)
        write_part(tmp_path / "sites" / site / SITE, SiteSettings(name=site, data="synthetic", tasks=["nuclei"]))
    find_engine("flower").provision(federation, tmp_path)
    return tmp_path


def of_server(folder: Path) -> list[Finding]:
    return list(find_engine("flower").check_server(ServerKit.open(folder / "server")))


def test_private_keys_are_their_owners_and_stay_where_they_belong(folder: Path) -> None:
    private = [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    names = sorted(str(path.relative_to(folder)) for path in private)
    assert names == ["authority/ca.key", "server/tls/server.key", "sites/A/keys/A", "sites/B/keys/B"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in private)
    assert sorted(path.name for path in (folder / "server" / "keys").iterdir()) == ["A.pub", "B.pub"]


def test_provisioning_again_changes_nothing_but_adds_a_site(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    find_engine("flower").provision(Federation(engine="flower", server="localhost:1", sites=["A", "B", "C"]), folder)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    assert {path.name for path in after.keys() - before.keys()} == {"C", "C.pub", "ca.crt"}


def test_a_server_that_is_not_started_yet_is_no_mistake(folder: Path) -> None:
    assert [finding.what for finding in of_server(folder) if not finding.ok] == []
    assert not find_engine("flower").is_running(ServerKit.open(folder / "server"))


def test_a_server_with_a_spoiled_key_does_not_start(folder: Path) -> None:
    (folder / "server" / "keys" / "B.pub").write_text("no key")
    with pytest.raises(UsageError, match=r"B\.pub: not a site's public key"):
        find_engine("flower").serve(ServerKit.open(folder / "server"))
    assert not (folder / "server" / "engine" / "secret").exists()
    [finding] = [finding for finding in of_server(folder) if not finding.ok]
    assert "B is not let in" in finding.hint


def test_a_site_that_has_not_joined_yet_keeps_nobody_else_out(folder: Path) -> None:
    (folder / "server" / "keys" / "B.pub").unlink()
    assert list(read_site_keys(ServerKit.open(folder / "server"))) == ["A"]
    [finding] = [finding for finding in of_server(folder) if finding.what == "B has not joined yet"]
    assert "harmofl deploy join" in finding.hint
