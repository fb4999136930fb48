"""Kits: what each party gets, what it does not get, and that there is a whole federation or none."""

import configparser
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from parties import SITES, Quiet, make

from harmofl import __version__
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.provisioning import add_site, choose_tasks, parse_sites, remove_site, renew
from harmofl.deployment.tls.certificates import read_certificate
from harmofl.errors import UsageError
from harmofl.settings import read_toml, resolve


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


def test_a_site_of_a_real_federation_has_its_folder_to_fill_in(tmp_path: Path, engine: Quiet) -> None:
    kits = make(tmp_path / "kits", ["Mayo"], tasks=["segmentation"], synthetic=False)
    text = (kits / "sites" / "Mayo" / "site.toml").read_text()
    assert 'data = "/path/to/images"' in text
    assert SiteKit.open(kits / "sites" / "Mayo").settings.tasks == ["segmentation"]
    assert "${DATA:?" in (kits / "sites" / "Mayo" / "compose.yaml").read_text()


def test_every_setting_of_a_site_is_in_its_file_with_a_comment(kits: Path) -> None:
    from harmofl.deployment.kits import SiteSettings

    text = (kits / "sites" / SITES[0] / "site.toml").read_text()
    assert set(tomllib.loads(text)) == set(SiteSettings.model_fields) - {"site_in_data", "intensity"}
    commented = tomllib.loads(re.sub(r"^# ((site_in_data|intensity) = )", r"\1", text, flags=re.MULTILINE))
    assert set(commented) == set(SiteSettings.model_fields)
    assert SiteSettings.model_validate(commented).intensity == [-160, 240]
    defaults = SiteSettings(name=SITES[0], data="synthetic", tasks=["histology"])
    assert SiteKit.open(kits / "sites" / SITES[0]).settings == defaults


def test_the_example_of_a_run_can_be_run(kits: Path) -> None:
    settings, method = resolve(file=read_toml(kits / "server" / "run.toml"))
    assert (settings.task, settings.preset, method.key) == ("histology", "smoke", "harmofl")


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
    path.write_text(f"{path.read_text()}\nintensity = {window}\n")
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


# Papers: start script, service, container, proxy


def test_the_start_script_starts_the_kit_it_lies_in(kits: Path, tmp_path: Path) -> None:
    script = kits / "server" / "start.sh"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "harmofl").write_text('#!/bin/sh\necho "$PWD $*"\n')
    (tmp_path / "bin" / "harmofl").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    result = subprocess.run([script], capture_output=True, text=True, env=environment, cwd="/", check=True)
    assert result.stdout == f"{kits / 'server'} deploy start .\n"


PARTIES = ["server", f"sites/{SITES[0]}"]
HARDENED = {
    "nonewprivileges": "true",
    "protectsystem": "strict",
    "protecthome": "true",
    "privatetmp": "true",
    "capabilityboundingset": "",
    "restrictsuidsgid": "true",
    "user": "harmofl",
}


@pytest.mark.parametrize("party", PARTIES)
def test_services_are_hardened(kits: Path, party: str) -> None:
    (path,) = (kits / party).glob("*.service")
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(path)
    service = dict(unit["Service"])
    assert HARDENED.items() <= service.items()
    assert service["readwritepaths"] == service["workingdirectory"] == service["execstart"].split()[-1]
    assert unit["Install"]["wantedby"] == "multi-user.target"


@pytest.mark.parametrize("party", PARTIES)
def test_systemd_accepts_the_services(kits: Path, tmp_path: Path, party: str) -> None:
    if not shutil.which("systemd-analyze"):
        return  # the test above has read them, as far as that goes
    (path,) = (kits / party).glob("*.service")
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/harmofl/bin/harmofl", sys.executable))
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    about_it = [line for line in result.stderr.splitlines() if path.name in line]
    assert about_it == []


def test_a_low_port_is_allowed_and_nothing_else(tmp_path: Path, engine: Quiet) -> None:
    kits = make(tmp_path / "kits", server="localhost:443")
    text = (kits / "server" / "harmofl-server.service").read_text()
    assert "\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n" in text
    assert "CAP_" not in (kits / "sites" / SITES[0] / "harmofl-site.service").read_text()


@pytest.mark.parametrize("party", PARTIES)
def test_images_hold_no_secret_and_do_not_run_as_root(kits: Path, party: str) -> None:
    lines = [line.split(maxsplit=1) for line in (kits / party / "Dockerfile").read_text().splitlines()]
    words = {line[0]: line[1] for line in lines if line}
    assert words["USER"] == "harmofl"
    assert words["FROM"] == "python:3.11-slim"
    assert f"harmofl[flower]=={__version__}" in words["RUN"]
    assert not {"COPY", "ADD", "ARG"} & words.keys()
    ignored = (kits / party / ".dockerignore").read_text().splitlines()
    assert [line for line in ignored if not line.startswith("#")] == ["*", "!Dockerfile"]


@pytest.mark.parametrize("party", PARTIES)
def test_containers_are_read_only_and_open_only_the_servers_port(kits: Path, party: str) -> None:
    ((name, service),) = yaml.safe_load((kits / party / "compose.yaml").read_text())["services"].items()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "network_mode", "environment", "pid"} & service.keys()
    assert service.get("ports") == (["8443:8443"] if name == "server" else None)
    assert service["volumes"] == [".:/kit"]


def test_the_proxy_passes_on_what_sites_need_and_nothing_else(kits: Path) -> None:
    from harmofl.deployment.flower.guard import FLEET, OPERATOR

    text = (kits / "server" / "nginx.conf").read_text()
    plain = re.sub(r"#.*", "", text)
    assert plain.count("{") == plain.count("}") == 4
    whole = f"^{FLEET.pattern}$"
    assert re.findall(r"location (.+) \{\s*(\S+)", plain) == [(f"~ {whole}", "proxy_pass"), ("/", "return")]
    assert f"if ($request_uri !~ {whole})" in plain
    assert f'proxy_set_header {OPERATOR} ""'.lower() in plain.lower()
    assert "listen 8443 ssl;" in plain
    assert "https://127.0.0.1:8444;" in plain


def test_nginx_accepts_the_rule(kits: Path, tmp_path: Path) -> None:
    if not shutil.which("nginx"):
        return  # the test above has read it, as far as that goes
    rule = (kits / "server" / "nginx.conf").read_text().replace("/etc/nginx/harmofl", str(kits / "server" / "tls"))
    whole = tmp_path / "nginx.conf"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    whole.write_text(f"pid {tmp_path}/pid; events {{}} http {{ access_log off; {places} {rule} }}")
    command = ["nginx", "-t", "-c", str(whole), "-p", str(tmp_path), "-e", str(tmp_path / "errors")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("party", PARTIES)
def test_a_readme_names_only_commands_and_files_that_there_are(kits: Path, party: str) -> None:
    from typer.main import get_command

    from harmofl.cli import app

    text = (kits / party / "README.md").read_text()
    known = get_command(app).commands["deploy"].commands  # type: ignore[attr-defined]
    assert set(re.findall(r"harmofl deploy ([a-z-]+)", text)) <= set(known)
    named = re.findall(r"`\.?/?([\w.-]+\.(?:sh|toml|conf|yaml))`", text)
    assert named
    assert [name for name in named if not (kits / party / name).exists()] == []
    assert [site for site in SITES[1:] if site in text] == []
