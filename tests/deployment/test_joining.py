"""Sites make their own keys: what travels holds no secret, and the coordinator never has a site's private key."""

import shutil
from pathlib import Path

import pytest

from harmofl.deployment.accepting import Accepted, accept, renew_accepted
from harmofl.deployment.engine import find_engine
from harmofl.deployment.joining import install_certificate, make_own_request
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.party import start_party
from harmofl.deployment.provisioning import add_site, make_federation, make_kits, open_kits, remove_site, renew
from harmofl.deployment.tls.certificates import make_authority, read_certificate
from harmofl.deployment.tls.checks import private_keys
from harmofl.errors import UsageError

ENGINES = ["flower", "nvflare"]


def invite(folder: Path, engine: str) -> Path:
    make_kits(make_federation(engine, "localhost", ["A", "B"]), folder / "kits", ["segmentation"])
    return folder / "kits"


def deliver(kits: Path, site: str) -> SiteKit:
    """A site's folder, on the hospital's machine."""
    return SiteKit.open(shutil.copytree(kits / "sites" / site, kits.parent / f"at-{site}"))


def sign(kits: Path, kit: SiteKit) -> Accepted:
    """What two people do on the telephone, and what they send."""
    request = make_own_request(kit)
    accepted = accept(kits, request.path, lambda site, number: (site, number) == (kit.name, request.fingerprint))
    install_certificate(kit, accepted.certificate)
    return accepted


@pytest.mark.parametrize("engine", ENGINES)
def test_no_kit_holds_a_sites_key_and_none_comes_back(tmp_path: Path, engine: str) -> None:
    kits = invite(tmp_path, engine)
    assert private_keys(kits / "sites") == []
    kit = deliver(kits, "A")
    accepted = sign(kits, kit)
    [own] = private_keys(kit.folder)
    assert own.stat().st_mode & 0o077 == 0
    secret = own.read_bytes()
    assert private_keys(kits / "sites") == []
    assert not any(secret in path.read_bytes() for path in kits.rglob("*") if path.is_file())
    assert [path.name for path in accepted.server_files] == (["A.pub"] if engine == "flower" else [])
    assert all(path.exists() for path in accepted.server_files)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_check_finds_a_site_that_made_its_own_key_in_order(tmp_path: Path, engine: str) -> None:
    kits = invite(tmp_path, engine)
    kit = deliver(kits, "A")
    *_, way = list(find_engine(engine).check_site(kit))
    assert "nothing listens there" in way.what
    missing = next(finding for finding in find_engine(engine).check_site(kit) if not finding.ok)
    assert "harmofl deploy join" in missing.hint
    sign(kits, kit)
    wrong = [finding.what for finding in find_engine(engine).check_site(kit) if not finding.ok]
    assert wrong == [way.what]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_site_without_its_key_does_not_start(tmp_path: Path, engine: str) -> None:
    kit = deliver(invite(tmp_path, engine), "A")
    with pytest.raises(UsageError, match="no key yet: `harmofl deploy join` makes it"):
        start_party(kit.folder)
    if engine == "nvflare":
        make_own_request(kit)
        with pytest.raises(UsageError, match=r"no certificate yet: send A\.csr"):
            start_party(kit.folder)


def test_asking_again_sends_the_same_key(tmp_path: Path) -> None:
    kit = deliver(invite(tmp_path, "flower"), "A")
    first, second = make_own_request(kit), make_own_request(kit)
    assert first == second


def test_a_number_that_differs_accepts_nobody(tmp_path: Path) -> None:
    kits = invite(tmp_path, "flower")
    request = make_own_request(deliver(kits, "A"))
    before = {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="not accepted"):
        accept(kits, request.path, lambda site, number: False)
    assert {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()} == before


def test_a_kit_with_a_strangers_authority_shows_in_the_number(tmp_path: Path) -> None:
    kits = invite(tmp_path, "flower")
    kit = deliver(kits, "A")
    shutil.copy(make_authority(tmp_path / "stranger") / "ca.crt", kit.folder / "tls" / "ca.crt")
    with pytest.raises(UsageError, match="not accepted"):
        sign(kits, kit)


def test_only_invited_sites_can_ask_and_only_with_one_key(tmp_path: Path) -> None:
    kits = invite(tmp_path, "flower")
    kit = deliver(kits, "A")
    sign(kits, kit)
    (kit.folder / "keys" / "A").unlink()
    with pytest.raises(UsageError, match=r"another key of 'A' has been accepted before"):
        accept(kits, make_own_request(kit).path, lambda site, number: True)
    remove_site(kits, "A")
    with pytest.raises(UsageError, match="unknown site 'A'"):
        accept(kits, make_own_request(kit).path, lambda site, number: True)
    add_site(kits, "A", with_keys=True)
    with pytest.raises(UsageError, match="was made with a key"):
        accept(kits, make_own_request(kit).path, lambda site, number: True)


def test_a_key_that_came_with_the_kit_is_not_taken_for_the_sites_own(tmp_path: Path) -> None:
    make_kits(make_federation("flower", "localhost", ["A"]), tmp_path / "kits", ["segmentation"], with_keys=True)
    with pytest.raises(UsageError, match="made by somebody else"):
        make_own_request(SiteKit.open(tmp_path / "kits" / "sites" / "A"))


@pytest.mark.parametrize(("engine", "other"), [("flower", "nvflare"), ("nvflare", "flower")])
def test_another_engines_key_is_refused(tmp_path: Path, engine: str, other: str) -> None:
    theirs = deliver(invite(tmp_path / "other", other), "A")
    kits = invite(tmp_path / "own", engine)
    with pytest.raises(UsageError, match="needs a"):
        accept(kits, make_own_request(theirs).path, lambda site, number: True)


@pytest.mark.parametrize("engine", ENGINES)
def test_certificates_are_renewed_without_the_sites_keys(tmp_path: Path, engine: str) -> None:
    kits = invite(tmp_path, engine)
    kit = deliver(kits, "A")
    accepted = sign(kits, kit)
    before = read_certificate(accepted.certificate).serial_number
    renew(kits)
    assert renew_accepted(kits) == [accepted.certificate]
    assert read_certificate(accepted.certificate).serial_number != before
    install_certificate(kit, accepted.certificate)
    assert private_keys(kits / "sites") == []


def test_without_the_authority_nobody_is_accepted(tmp_path: Path) -> None:
    kits = invite(tmp_path, "flower")
    shutil.rmtree(kits / "authority")
    with pytest.raises(UsageError, match="bring it back"):
        sign(kits, deliver(kits, "A"))


def test_trials_and_those_who_ask_for_it_get_kits_with_keys(tmp_path: Path) -> None:
    federation = make_federation("flower", "localhost", ["hospital-0"])
    make_kits(federation, tmp_path / "trial", ["histology"], synthetic=True)
    make_kits(federation, tmp_path / "asked", ["histology"], with_keys=True)
    make_kits(federation, tmp_path / "own", ["histology"], synthetic=True, with_keys=False)
    assert [len(private_keys(tmp_path / name / "sites")) for name in ("trial", "asked", "own")] == [1, 1, 0]
    assert open_kits(tmp_path / "own")[1].own_keys == ["hospital-0"]
    assert "no secret" in (tmp_path / "own" / "README.md").read_text()
    assert "`harmofl deploy join`" in (tmp_path / "own" / "sites" / "hospital-0" / "README.md").read_text()
    assert "It holds a private key" in (tmp_path / "asked" / "sites" / "hospital-0" / "README.md").read_text()


def test_the_server_starts_before_everybody_has_joined(tmp_path: Path) -> None:
    from harmofl.deployment.flower.server import read_site_keys

    kits = invite(tmp_path, "flower")
    server = ServerKit.open(kits / "server")
    assert read_site_keys(server) == {}
    sign(kits, deliver(kits, "B"))
    assert list(read_site_keys(server)) == ["B"]
