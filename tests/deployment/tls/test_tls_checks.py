"""Keys, certificates and ports of a party: what is wrong with them is said, with what to do."""

import os
import re
import stat
from pathlib import Path

import pytest
from listeners import HOST, listening
from parties import SITES, Quiet, free_port, make

from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.tls import checks
from harmofl.deployment.tls.certificates import issue_server_certificate, make_authority
from harmofl.deployment.tls.checks import Credentials, check_credentials, check_port, check_way, private_keys

OF_SERVER = Credentials(key="tls/server.key", authority="tls/ca.crt")
OF_SITE = Credentials(key=f"keys/{SITES[0]}", authority="tls/ca.crt")


@pytest.fixture
def kits(tmp_path: Path, engine: Quiet) -> Path:
    return make(tmp_path / "kits", server=f"{HOST}:{free_port()}")


def problems(kits: Path) -> list[str]:
    return [finding.what for finding in check_credentials(kits / "server", OF_SERVER) if not finding.ok]


def test_fresh_credentials_have_no_problem(kits: Path) -> None:
    assert problems(kits) == []
    assert all(finding.ok for finding in check_credentials(kits / "sites" / SITES[0], OF_SITE))


@pytest.mark.skipif(os.name == "nt", reason="modes of files are a matter of POSIX")
def test_a_key_that_others_can_read_is_named(kits: Path) -> None:
    (kits / "server" / "tls" / "server.key").chmod(0o640)
    assert problems(kits) == ["tls/server.key: other users can read this private key"]


def test_a_key_of_another_user_is_named(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert problems(kits) == ["tls/server.key belongs to another user"]


@pytest.mark.parametrize("source", [f"sites/{SITES[1]}/keys/{SITES[1]}", "authority/ca.key"])
def test_somebody_elses_key_is_named(kits: Path, source: str) -> None:
    there = kits / "server" / "keys" / "copied"
    there.write_bytes((kits / source).read_bytes())
    there.chmod(0o600)
    assert problems(kits) == ["keys/copied is a private key that is not this party's"]


def test_a_missing_key_is_named(kits: Path) -> None:
    (kits / "server" / "tls" / "server.key").unlink()
    assert problems(kits) == ["no private key here that can be read (tls/server.key)"]


def test_missing_certificates_are_told_of(kits: Path) -> None:
    for path in (kits / "server" / "tls").glob("*.crt"):
        path.unlink()
    assert problems(kits) == ["no certificate here"]


@pytest.mark.parametrize("name", ["flower", "nvflare"])
def test_private_keys_lie_only_where_they_belong(tmp_path: Path, name: str) -> None:
    kits = make(tmp_path / "kits", engine=name)
    contents = [key for path in private_keys(kits) for key in pem_blocks(path)]
    assert len(contents) == len(set(contents)) == 2 + len(SITES)  # authority, server, sites: each once
    for site in SITES:
        assert len(private_keys(kits / "sites" / site)) == 1
    assert len(private_keys(kits / "server")) == 1
    for path in private_keys(kits):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def pem_blocks(path: Path) -> list[str]:
    text = path.read_text().replace("\\n", "\n")
    return re.findall(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END", text, re.DOTALL)


@pytest.mark.parametrize(
    ("days", "ok", "words"), [(400, True, "399 days"), (20, True, "19 days"), (0, False, "expired on")]
)
def test_a_certificate_is_told_of_before_it_expires(kits: Path, days: int, ok: bool, words: str) -> None:
    issue_server_certificate(kits / "authority", [HOST], kits / "server" / "tls", days)
    (found,) = (
        finding
        for finding in check_credentials(kits / "server", OF_SERVER)
        if finding.what.startswith("tls/server.crt")
    )
    assert found.ok is ok
    assert words in found.what
    assert bool(found.hint) == (days < 30)


def test_a_certificate_of_the_future_is_the_clocks_fault(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Past(checks.datetime):  # type: ignore[name-defined,misc]
        @classmethod
        def now(cls, zone: object = None) -> "Past":
            return cls(2001, 1, 1, tzinfo=checks.UTC)  # type: ignore[attr-defined]

    monkeypatch.setattr(checks, "datetime", Past)
    found = [finding for finding in check_credentials(kits / "server", OF_SERVER) if "is valid from" in finding.what]
    assert len(found) == 2
    assert not any(finding.ok for finding in found)
    assert "clock" in found[0].hint


def test_a_free_port_is_good(kits: Path) -> None:
    found = check_port(ServerKit.open(kits / "server"), OF_SERVER)
    assert found.ok
    assert re.fullmatch(r"port \d+ is free for the server", found.what)


def test_the_port_of_the_federations_own_server_is_good(tmp_path: Path, engine: Quiet) -> None:
    authority = make_authority(tmp_path / "authority")
    issue_server_certificate(authority, ["localhost"], tmp_path / "tls")
    with listening(tmp_path / "tls") as port:
        kits = make(tmp_path / "kits", server=f"localhost:{port}")
        for party in ("server", f"sites/{SITES[0]}"):
            (kits / party / "tls" / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
        found = check_port(ServerKit.open(kits / "server"), OF_SERVER)
        way = check_way(SiteKit.open(kits / "sites" / SITES[0]), OF_SITE)
    assert (found.ok, found.what) == (True, f"the server listens on port {port}")
    assert (way.ok, way.what) == (True, f"localhost:{port} can be reached and is the federation's server")


def test_a_port_that_another_program_has_is_not(tmp_path: Path, engine: Quiet) -> None:
    with listening(None) as port:
        kits = make(tmp_path / "kits", server=f"localhost:{port}")
        found = check_port(ServerKit.open(kits / "server"), OF_SERVER)
    assert (found.ok, found.what) == (False, f"port {port} is taken, and not by this federation's server")
