"""The papers of a kit: start script, README, service, container, proxy, and examples of settings."""

import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from parties import SITES, Quiet, make

from harmofl import __version__
from harmofl.deployment.kits import SiteKit, SiteSettings
from harmofl.settings import read_toml, resolve


@pytest.fixture
def kits(tmp_path: Path, engine: Quiet) -> Path:
    return make(tmp_path / "kits")


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
    assert words["USER"] == "1000:1000"  # a number, so that orchestrators see that it is not root
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
    assert plain.count("{") == plain.count("}") == 5
    assert re.search(r'if \(\$ssl_client_escaped_cert = ""\) \{\s*return 401;', plain)
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


def test_every_setting_of_a_site_is_in_its_file_with_a_comment(kits: Path) -> None:
    text = (kits / "sites" / SITES[0] / "site.toml").read_text()
    unset = {"site_in_data", "intensity", "largest_memory_mb", "health_port", "consortium_key"}
    assert set(tomllib.loads(text)) == set(SiteSettings.model_fields) - unset
    commented = tomllib.loads(re.sub(rf"^# (({'|'.join(unset)}) = )", r"\1", text, flags=re.MULTILINE))
    assert set(commented) == set(SiteSettings.model_fields)
    assert SiteSettings.model_validate(commented).intensity == [-160, 240]
    defaults = SiteSettings(name=SITES[0], data="synthetic", tasks=["histology"])
    assert SiteKit.open(kits / "sites" / SITES[0]).settings == defaults


def test_the_example_of_a_run_can_be_run(kits: Path) -> None:
    settings, method = resolve(file=read_toml(kits / "server" / "run.toml"))
    assert (settings.task, settings.preset, method.key) == ("histology", "smoke", "harmofl")


def test_a_site_of_a_real_federation_has_its_folder_to_fill_in(tmp_path: Path, engine: Quiet) -> None:
    kits = make(tmp_path / "kits", ["Mayo"], tasks=["segmentation"], synthetic=False)
    text = (kits / "sites" / "Mayo" / "site.toml").read_text()
    assert 'data = "/path/to/images"' in text
    assert SiteKit.open(kits / "sites" / "Mayo").settings.tasks == ["segmentation"]
    assert "${DATA:?" in (kits / "sites" / "Mayo" / "compose.yaml").read_text()
