"""Kits: what each party gets, what it does not get, and that there is a whole federation or none."""

import re
import shutil
import stat
from pathlib import Path

import pytest
from parties import SITES, Quiet, make

from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.provisioning import add_site, choose_tasks, make_federation, parse_sites, remove_site, renew
from harmofl.deployment.tls.certificates import read_certificate
from harmofl.errors import UsageError


@pytest.fixture
def kits(tmp_path: Path, engine: Quiet) -> Path:
    return make(tmp_path / "kits")


def test_each_party_has_a_kit_that_can_be_opened(kits: Path) -> None:
    server = ServerKit.open(kits / "server")
    assert server.federation.sites == SITES
    assert server.federation.server == "localhost:8443"
    for name in SITES:
        site = SiteKit.open(kits / "sites" / name)
        assert (site.name, site.data, site.settings.tasks) == (name, None, ["histology"])
        assert site.federation.sites == [name]  # of the others it need not know


@pytest.mark.parametrize("name", ["flower", "nvflare"])
def test_no_file_tells_where_it_was_made(tmp_path: Path, name: str) -> None:
    kits = make(tmp_path / "kits", engine=name)
    telling = [path for path in kits.rglob("*") if path.is_file() and str(tmp_path).encode() in path.read_bytes()]
    assert telling == []


def test_nobody_else_can_open_the_folder_of_all_kits(kits: Path) -> None:
    assert stat.S_IMODE(kits.stat().st_mode) == 0o700


def test_a_failure_leaves_nothing_behind(tmp_path: Path, engine: Quiet) -> None:
    engine.fails = True
    with pytest.raises(RuntimeError):
        make(tmp_path / "kits")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, engine: Quiet) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--out .*file/kits: .*; nothing was made"):
        make(tmp_path / "file" / "kits")


def test_a_place_that_cannot_be_looked_at_is_named(tmp_path: Path, engine: Quiet) -> None:
    with pytest.raises(UsageError, match=r"--out .*xxx: File name too long; nothing was made"):
        make(tmp_path / ("x" * 300))


def test_a_folder_that_holds_something_is_refused_and_kept(tmp_path: Path, engine: Quiet) -> None:
    (tmp_path / "kits").mkdir()
    (tmp_path / "kits" / "mine").touch()
    with pytest.raises(UsageError, match="exists already"):
        make(tmp_path / "kits")
    assert [path.name for path in tmp_path.rglob("*")] == ["kits", "mine"]


def test_an_empty_folder_is_taken(tmp_path: Path, engine: Quiet) -> None:
    (tmp_path / "kits").mkdir()
    assert (make(tmp_path / "kits") / "server" / "federation.toml").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A,", "site ''"),
        ("A,../B", "site '../B': must be letters"),
        ("A B,C", "site 'A B': must be letters"),
        ("-A", "site '-A'"),
        ("A,B,A", "'A' is there twice"),
        ("Mayo,mayo", "'Mayo' is there twice"),
        ("A,server", "records use that word"),
        ("x" * 64, "at most 63"),
        ("A\n,B\n", ""),
    ],
)
def test_names_are_checked(text: str, words: str) -> None:
    if not words:
        assert parse_sites(text) == ["A", "B"]
        return
    with pytest.raises(UsageError, match=re.escape(words)):
        parse_sites(text)


@pytest.mark.parametrize("server", ["localhost", "localhost:9443", "LocalHost"])
def test_no_site_is_called_like_the_servers_host(server: str) -> None:
    with pytest.raises(UsageError, match="the server is reached under this name"):
        make_federation("flower", server, ["A", "localhost"])
    assert make_federation("flower", server, ["A", "localhost-2"]).sites == ["A", "localhost-2"]


def test_synthetic_sites_have_the_names_of_the_phantoms() -> None:
    assert choose_tasks([], ["hospital-0"], True) == ["histology"]
    assert choose_tasks([], ["UCL", "HK"], True) == ["prostate"]
    with pytest.raises(UsageError, match=r"synthetic hospitals are histology: hospital-0, .*; nuclei: "):
        choose_tasks([], ["A"], True)
    with pytest.raises(UsageError, match=r"--synthetic with --sites UCL: synthetic hospitals are histology: hosp"):
        choose_tasks(["histology"], ["UCL"], True)
    with pytest.raises(UsageError, match="only histology, nuclei, prostate have"):
        choose_tasks(["segmentation"], ["A"], True)


def test_tasks_are_checked_and_have_a_default() -> None:
    assert choose_tasks([], ["A"], False) == ["segmentation"]
    assert choose_tasks(["nuclei", "nuclei"], ["A"], False) == ["nuclei"]
    with pytest.raises(UsageError, match="unknown task 'nucleii'; did you mean 'nuclei'"):
        choose_tasks(["nucleii"], ["A"], False)


def test_an_unknown_engine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown engine 'flwr'"):
        make(tmp_path / "kits", engine="flwr")


# One site more, one less


def test_a_site_joins_with_a_key_of_its_own(kits: Path) -> None:
    before = {path: path.read_bytes() for path in (kits / "sites").rglob("*") if path.is_file()}
    add_site(kits, "hospital-3")
    assert ServerKit.open(kits / "server").federation.sites == [*SITES, "hospital-3"]
    assert SiteKit.open(kits / "sites" / "hospital-3").data is None
    assert len({path.read_bytes() for path in (kits / "server" / "keys").iterdir()}) == 4
    assert all(path.read_bytes() == content for path, content in before.items())
    assert "hospital-3" in (kits / "README.md").read_text()


def test_a_site_joins_while_the_authority_is_kept_offline(kits: Path) -> None:
    shutil.rmtree(kits / "authority")
    add_site(kits, "hospital-3")
    assert stat.S_IMODE((kits / "sites" / "hospital-3").stat().st_mode) == 0o700
    assert not (kits / "authority").exists()
    certificates = {(kits / place / "tls" / "ca.crt").read_bytes() for place in ("server", "sites/hospital-3")}
    assert len(certificates) == 1


@pytest.mark.parametrize("window", ["[1]", "[2, 1]", "[1, 1]", "[0, 1, 2]", '["0", "1"]', "1", "[0, inf]"])
def test_a_window_of_intensities_is_checked(kits: Path, window: str) -> None:
    path = kits / "sites" / SITES[0] / "site.toml"
    path.write_text(f"intensity = {window}\n{path.read_text()}")  # before the tables
    with pytest.raises(UsageError, match=r"site\.toml: intensity"):
        SiteKit.open(path.parent)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hospital-1", "has one already"),
        ("Hospital-1", "has one already"),
        ("a/b", "must be letters"),
        ("Mayo", "synthetic hospitals are histology"),
    ],
)
def test_a_site_that_cannot_join_changes_nothing(kits: Path, name: str, words: str) -> None:
    before = everything(kits)
    with pytest.raises(UsageError, match=words):
        add_site(kits, name)
    assert everything(kits) == before


def test_a_failure_in_joining_changes_nothing(kits: Path, engine: Quiet) -> None:
    before = everything(kits)
    engine.fails = True
    with pytest.raises(RuntimeError):
        add_site(kits, "hospital-3")
    assert everything(kits) == before


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_site_that_leaves_is_forgotten_with_its_key_but_not_its_models(kits: Path) -> None:
    (kits / "sites" / SITES[1] / "models").mkdir()
    aside = remove_site(kits, SITES[1])
    assert aside
    assert (aside / "models").is_dir()
    assert ServerKit.open(kits / "server").federation.sites == [SITES[0], SITES[2]]
    assert {path.stem for path in (kits / "server" / "keys").iterdir()} == {SITES[0], SITES[2]}
    assert not (kits / "sites" / SITES[1]).exists()


def test_a_site_that_comes_back_has_another_key(kits: Path) -> None:
    key = (kits / "server" / "keys" / f"{SITES[1]}.pub").read_bytes()
    remove_site(kits, SITES[1])
    add_site(kits, SITES[1])
    remove_site(kits, SITES[1])
    add_site(kits, SITES[1])
    assert (kits / "server" / "keys" / f"{SITES[1]}.pub").read_bytes() != key
    assert len(list((kits / "removed" / SITES[1]).iterdir())) == 2


def test_the_last_site_and_an_unknown_one_cannot_leave(tmp_path: Path, engine: Quiet) -> None:
    kits = make(tmp_path / "kits", SITES[:1])
    with pytest.raises(UsageError, match="only one"):
        remove_site(kits, SITES[0])
    with pytest.raises(UsageError, match="unknown site 'hospital-9'; did you mean"):
        remove_site(kits, "hospital-9")
    with pytest.raises(UsageError, match=r"holds no kits\.toml"):
        add_site(tmp_path, "hospital-1")


def test_a_certified_name_is_not_given_twice(tmp_path: Path) -> None:
    kits = make(tmp_path / "kits", engine="nvflare")
    certificate = kits / "server" / "engine" / "startup" / "server.crt"
    before = certificate.read_bytes()
    add_site(kits, "hospital-3")
    roots = {(kits / "sites" / name / "engine/startup/rootCA.pem").read_bytes() for name in [*SITES, "hospital-3"]}
    assert (certificate.read_bytes(), len(roots)) == (before, 1)
    remove_site(kits, "hospital-3")
    with pytest.raises(UsageError, match="old certificate would be accepted again"):
        add_site(kits, "hospital-3")
    shutil.rmtree(kits / "authority")
    with pytest.raises(UsageError, match="bring it back"):
        add_site(kits, "hospital-4")


@pytest.mark.parametrize(
    ("name", "path"), [("flower", "tls/server.crt"), ("nvflare", "engine/startup/server.crt")], ids=["flower", "flare"]
)
def test_certificates_are_renewed_by_the_same_authority(tmp_path: Path, name: str, path: str) -> None:
    kits = make(tmp_path / "kits", engine=name)
    before = read_certificate(kits / "server" / path)
    shutil.rmtree(kits / "sites" / SITES[0])  # delivered
    folders = renew(kits)
    after = read_certificate(kits / "server" / path)
    assert (after.serial_number != before.serial_number, after.issuer) == (True, before.issuer)
    assert kits / "server" / Path(path).parts[0] in folders
    assert all(folder.is_dir() for folder in folders)
    assert not list(kits.glob(".*"))


def test_a_renewal_that_fails_changes_nothing(kits: Path, engine: Quiet) -> None:
    before = everything(kits)
    engine.fails = True
    with pytest.raises(RuntimeError):
        renew(kits)
    assert everything(kits) == before
