"""`/health` and `/metrics`, scraped: what a party says of itself, to its own machine alone."""

import json
import logging
import re
import shutil
import urllib.error
import urllib.request
from collections import namedtuple
from http.client import HTTPConnection
from pathlib import Path

import pytest
from parties import SITES, free_port, make

from harmofl.deployment.audit import audit_log, write_entry
from harmofl.deployment.health import Health
from harmofl.deployment.health_server import serve_health
from harmofl.deployment.kits import ServerKit, SiteKit, open_kit
from harmofl.deployment.party import warn_of_trouble
from harmofl.deployment.status import SERVER, note_status
from harmofl.deployment.tls.certificates import issue_server_certificate
from harmofl.errors import UsageError

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)+)\})? (\S+)')


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made") / "kits")


@pytest.fixture
def kits(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "kits")


def with_port(folder: Path) -> tuple[ServerKit | SiteKit, int]:
    port = free_port()
    path = folder / ("site.toml" if (folder / "site.toml").exists() else "server.toml")
    path.write_text(f"health_port = {port}\n{path.read_text()}")
    return open_kit(folder), port


def get(port: int, path: str, host: str = "") -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def parse(text: str) -> dict[str, float]:
    """Figures by name and labels, each described once, just before."""
    found: dict[str, float] = {}
    described = ""
    for line in text.splitlines():
        if line.startswith("# "):
            described = line.split()[2]
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        assert sample[1] == described
        found[f"{sample[1]}{{{sample[2]}}}" if sample[2] else sample[1]] = float(sample[3])
    assert text.endswith("\n")
    assert len(re.findall("^# TYPE", text, re.MULTILINE)) == len({name.partition("{")[0] for name in found})
    return found


def answer(folder: Path, number: int, outcome: str = "done", **more: object) -> None:
    about = {"run": "r1", "asked": "train", "round": number, "received": 1000, "sent": 10, "seconds": 0.5}
    write_entry(audit_log(folder), who="server", **{**about, **more}, outcome=outcome)


def test_a_site_tells_its_rounds_bytes_and_refusals(kits: Path) -> None:
    folder = kits / "sites" / SITES[0]
    kit, port = with_port(folder)
    note_status(folder, [SERVER])
    for number in (1, 2):
        answer(folder, number)
    answer(folder, 3, "refused: too much")
    write_entry(audit_log(folder), who="stranger", outcome="refused: 401 at the door", times=7)
    with serve_health(kit):
        status, kind, body = get(port, "/health")
        assert (status, kind) == (200, "application/json")
        report = json.loads(body)
        assert (report["ok"], report["running"], report["connected"]) == (True, True, ["server"])
        assert (report["last_run"], report["last_round"]) == ("r1", 2)
        assert report["last_error"]["outcome"] == "refused: 401 at the door"
        status, kind, text = get(port, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        before = parse(text)
        answer(folder, 4, "failed: the disk is full", seconds=1.25)
        after = parse(get(port, "/metrics")[2])
    assert before['harmofl_answers_total{asked="train",outcome="done"}'] == 2
    assert before["harmofl_refusals_total"] == 1 + 7
    assert (before["harmofl_rounds_total"], before["harmofl_received_bytes_total"]) == (2, 3000)
    assert (before["harmofl_sent_bytes_total"], before["harmofl_connected"], before["harmofl_healthy"]) == (30, 1, 1)
    assert after['harmofl_answers_total{asked="train",outcome="failed"}'] == 1
    assert after['harmofl_answer_seconds_total{asked="train"}'] == pytest.approx(3 * 0.5 + 1.25)
    assert after["harmofl_disk_free_bytes"] == pytest.approx(shutil.disk_usage(kits).free, rel=0.2)
    assert after["harmofl_approvals_waiting"] == 0
    assert after['harmofl_certificate_ends_seconds{file="ca.crt"}'] > 1.7e9


def test_the_server_tells_who_is_connected(kits: Path) -> None:
    kit, port = with_port(kits / "server")
    note_status(kit.folder, [SITES[1], SITES[0]])
    with serve_health(kit):
        assert json.loads(get(port, "/health")[2])["connected"] == SITES[:2]
        figures = parse(get(port, "/metrics")[2])
    assert (figures["harmofl_connected"], figures["harmofl_sites"]) == (2, 3)


def test_a_site_that_is_not_connected_is_not_well_and_says_why(kits: Path) -> None:
    kit, port = with_port(kits / "sites" / SITES[0])
    note_status(kit.folder, [], "the server cannot be reached")
    with serve_health(kit):
        status, _, body = get(port, "/health")
    assert status == 503
    assert json.loads(body)["problems"] == ["not connected: the server cannot be reached"]


def test_nobody_else_is_answered_and_nothing_can_be_changed(kits: Path) -> None:
    kit, port = with_port(kits / "server")
    before = {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()}
    with serve_health(kit):
        assert get(port, "/health", host="evil.example.org")[0] == 403
        assert get(port, "/audit.jsonl")[0] == 404
        assert get(port, "/../federation.toml")[0] == 404
        for method in ("POST", "PUT", "DELETE"):
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/health", data=b"x", method=method)
            with pytest.raises(urllib.error.HTTPError, match="501"):
                urllib.request.urlopen(asked, timeout=10)
        assert get(port, "/health", host=f"localhost:{port}")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        get(port, "/health")
    assert {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()} == before


def test_without_a_port_nothing_listens_and_a_taken_one_is_named(kits: Path) -> None:
    with serve_health(open_kit(kits / "server")):
        pass
    kit, port = with_port(kits / "sites" / SITES[0])
    with (
        serve_health(kit),
        pytest.raises(UsageError, match=rf"health_port = {port}: Address already in use"),
        serve_health(kit),
    ):
        pass


def test_a_log_that_was_moved_away_begins_anew_and_damage_stops_nothing(kits: Path) -> None:
    folder = kits / "sites" / SITES[0]
    health = Health(SiteKit.open(folder))
    answer(folder, 1)
    assert health.report()["last_round"] == 1
    audit_log(folder).rename(folder / "old.jsonl")
    with open(audit_log(folder), "wb") as file:
        file.write(b"\xff\n[1]\n")
    answer(folder, 5)
    assert health.report()["last_round"] == 5
    assert parse(health.metrics())["harmofl_rounds_total"] == 1


def test_the_log_names_a_full_disk_and_an_expired_certificate_at_the_start(
    kits: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    issue_server_certificate(kits / "authority", ["localhost"], kits / "server" / "tls", days=-1)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**40, 2**20))
    monkeypatch.setattr(logging.getLogger("harmofl.deployment"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        warn_of_trouble(ServerKit.open(kits / "server"))
    full, expired = dict.fromkeys(record.getMessage() for record in caplog.records)  # other tests' handlers repeat them
    assert full == "the disk is nearly full: 1 MB are free"
    assert expired.startswith("server.crt expired on ")
