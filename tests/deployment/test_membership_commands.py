"""`harmofl deploy join`, `accept`, `revoke`: what two people on the telephone see, and the exit codes."""

import re
import sys
from pathlib import Path

import pytest
from parties import SITES, make

from harmofl import cli
from harmofl.deployment.checking import check_server
from harmofl.deployment.kits import ServerKit

NUMBER = r"\d{5}(?: \d{5}){5}"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """A command's exit code."""
    monkeypatch.setattr(sys, "argv", ["harmofl", "deploy", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_two_people_see_the_same_number_and_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kits, folder = make(tmp_path / "kits", with_keys=False), tmp_path / "kits" / "sites" / SITES[0]
    assert call(monkeypatch, "join", folder) == 0
    [told] = re.findall(NUMBER, capsys.readouterr().out)
    request = folder / f"{SITES[0]}.csr"
    wrong = told[:-1] + str((int(told[-1]) + 1) % 10)
    assert call(monkeypatch, "accept", request, "--kits", kits, "--fingerprint", wrong) == 2
    assert "not accepted" in capsys.readouterr().err
    assert not (kits / "accepted").exists()
    assert call(monkeypatch, "accept", request, "--kits", kits, "--fingerprint", told) == 0
    shown = capsys.readouterr().out
    assert re.findall(NUMBER, shown) == [told]
    assert f"{kits}/accepted/{SITES[0]}.crt: send it to {SITES[0]}" in shown
    assert f"{kits}/server/keys/{SITES[0]}.pub" in shown
    assert call(monkeypatch, "join", folder, "--certificate", kits / "accepted" / f"{SITES[0]}.crt") == 0
    assert "from this federation's authority" in capsys.readouterr().out
    assert (folder / "tls" / "site.crt").exists()


def test_a_revoked_site_is_named_by_the_command_and_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make(tmp_path / "kits") / "server"
    assert call(monkeypatch, "revoke", SITES[1], "--kit", server, "--reason", "laptop stolen") == 0
    assert f"{SITES[1]} is shut out" in capsys.readouterr().out
    found = [finding.what for finding in check_server(ServerKit.open(server))]
    assert any(re.fullmatch(rf"{SITES[1]} is shut out since \S+Z: laptop stolen", what) for what in found)
    assert call(monkeypatch, "revoke", SITES[1], "--kit", server) == 2
    assert "has been revoked before" in capsys.readouterr().err
