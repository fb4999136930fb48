"""`harmofl deploy`: what the commands print, and their exit codes."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import looped, make_kits
from parties import SITES, Quiet, free_port, make
from rich.console import Console
from rich.progress import Progress

from folders import segmentation_folder
from harmofl import cli, registry
from harmofl.deployment.engine import Finding
from harmofl.deployment.logs import log_to_stdout
from harmofl.displays.live import LiveDisplay
from harmofl.events import RunStarted, SitesAwaited
from runs import HARMOFL, environment


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    logger = logging.getLogger("harmofl.deployment")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """A command's exit code."""
    monkeypatch.setattr(sys, "argv", ["harmofl", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def init(out: Path, **more: str) -> list[object]:
    options = {"engine": "flower", "sites": ",".join(SITES), "server": "localhost", "out": str(out)} | more
    return ["deploy", "init", *(part for name, value in options.items() for part in (f"--{name}", value))]


def test_kits_are_made_and_explained(
    tmp_path: Path, engine: Quiet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *init(tmp_path / "kits"), "--synthetic") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path / 'kits' / 'server'}: for the server's machine"
    assert len(lines) == 3 + len(SITES)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sites": "A,A"}, "'A' is there twice"),
        ({"server": "localhost:0"}, "--server 'localhost:0'"),
        ({"task": "nope"}, "unknown task 'nope'"),
        ({"name": "a b"}, "name = 'a b'"),
    ],
)
def test_wrong_usage_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    engine: Quiet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    words: str,
) -> None:
    assert call(monkeypatch, *init(tmp_path / "kits", **changes)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harmofl.deployment import engine

    monkeypatch.setattr(engine, "installed_version", lambda package: "")
    assert call(monkeypatch, *init(tmp_path / "kits")) == 2
    assert "pip install 'harmofl[flower]'" in capsys.readouterr().err


def test_sites_join_and_leave_and_the_operator_is_told_what_to_copy(
    tmp_path: Path, engine: Quiet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kits = make(tmp_path / "kits")
    assert call(monkeypatch, "deploy", "add-site", "hospital-3", "--kits", kits) == 0
    out = capsys.readouterr().out
    assert f"{kits}/sites/hospital-3: for hospital-3, and nobody else" in out
    assert f"{kits}/server/federation.toml, {kits}/server/keys/hospital-3.pub" in out
    assert "A running server sees it within a few seconds" in out
    assert call(monkeypatch, "deploy", "remove-site", "hospital-3", "--kits", kits) == 0
    out = capsys.readouterr().out
    assert f"{kits}/removed/hospital-3/1" in out
    assert f"{kits}/server/federation.toml, {kits}/server/revoked.toml\n" in out
    assert call(monkeypatch, "deploy", "renew", "--kits", kits) == 0
    assert f"{kits}/server/tls: copy it" in capsys.readouterr().out


@pytest.mark.parametrize(("party", "started"), [("server", "server"), (f"sites/{SITES[1]}", SITES[1])])
def test_each_party_starts_as_itself(
    tmp_path: Path, engine: Quiet, monkeypatch: pytest.MonkeyPatch, party: str, started: str
) -> None:
    kits = make(tmp_path / "kits")
    monkeypatch.chdir(kits / party)
    assert call(monkeypatch, "deploy", "start") == 0
    assert call(monkeypatch, "deploy", "start", kits / party) == 0
    assert engine.started == [started, started]


def test_a_site_is_started_once(
    tmp_path: Path, engine: Quiet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harmofl.deployment.kits import SiteKit

    kit = SiteKit.open(make(tmp_path / "kits") / "sites" / SITES[0])
    with kit.lock():
        assert call(monkeypatch, "deploy", "start", kit.folder) == 2
    assert "started already" in capsys.readouterr().err


def test_a_kit_that_cannot_be_written_is_one_line(
    tmp_path: Path, engine: Quiet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "kits") / "sites" / SITES[0]
    (folder / ".site.lock").mkdir()  # as little to be opened for writing as a file of another user's
    assert call(monkeypatch, "deploy", "start", folder) == 2
    assert capsys.readouterr().err == f"harmofl: {folder / '.site.lock'}: Is a directory\n"


def test_every_engines_server_is_started_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harmofl.deployment.kits import FEDERATION, ServerKit

    folder = make(tmp_path / "kits") / "server"
    words = (folder / FEDERATION).read_text()
    for name in registry.engines.names():
        (folder / FEDERATION).write_text(words.replace('"flower"', f'"{name}"'))
        with ServerKit.open(folder).lock():
            assert call(monkeypatch, "deploy", "start", folder) == 2
        assert "this server has been started already" in capsys.readouterr().err


def test_a_log_has_one_line_per_request_and_names_no_patient(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stdout()
    logger = logging.getLogger("harmofl.deployment.participant")
    logger.info("%s: run %s, round %d, %s: %s", "A", "0123abcd", 1, "train", "done")
    try:
        raise FileNotFoundError(2, "No such file", "/images/patient-17/scan.png")
    except FileNotFoundError:
        logger.exception("%s: a request was not answered", "A")
    logger.debug("not for everyone")
    logging.getLogger("another.package").info("nor this")
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(" A: run 0123abcd, round 1, train: done")
    assert "A: a request was not answered" in second
    assert "FileNotFoundError" in second
    assert "patient-17" not in second


def test_with_debug_a_log_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stdout(debug=True)
    try:
        raise FileNotFoundError(2, "No such file", "/images/patient-17/scan.png")
    except FileNotFoundError:
        logging.getLogger("harmofl.deployment").exception("failed")
    assert "patient-17" in capsys.readouterr().out


def test_findings_are_lines_with_what_to_do(
    tmp_path: Path, engine: Quiet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kits = make(tmp_path / "kits", server=f"localhost:{free_port()}")
    engine.findings = [Finding(True, "good"), Finding(True, "so so", "soon"), Finding(False, "bad", "do this")]
    assert call(monkeypatch, "deploy", "check", kits / "server") == 2
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("✓ good")
    assert lines[start : start + 5] == ["✓ good", "! so so", "    soon", "✗ bad", "    do this"]
    engine.findings = []
    assert call(monkeypatch, "deploy", "check", kits / "server") == 0


def test_findings_are_json_for_machines(
    tmp_path: Path, engine: Quiet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "deploy", "check", "--json") == 2
    (found,) = json.loads(capsys.readouterr().out)
    assert found.keys() == {"ok", "what", "hint"}
    assert found["ok"] is False


def test_a_run_at_the_server_is_shown_and_written_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, sites = make_kits(tmp_path, dict.fromkeys(SITES, "synthetic"), ["histology"])
    config = tmp_path / "run.toml"
    config.write_text('task = "histology"\npreset = "smoke"\n[method]\nname = "fedavg"\n')
    short = ["--set", "training.rounds=1", "--set", "data.images=24", "--seed", 3, "--wait", 1]
    arguments = ["deploy", "run", "--kit", server.folder, "--config", config, "--out", tmp_path / "run", *short]
    with looped(sites):
        assert call(monkeypatch, *arguments) == 0
        out = capsys.readouterr().out
        assert call(monkeypatch, *arguments, "--resume") == 0
        assert call(monkeypatch, *arguments) == 2
    assert "waiting for sites: hospital-0, hospital-1, hospital-2" in out
    assert "round 1: loss" in out
    assert f"harmofl report {tmp_path / 'run'}" in out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["seed"] == 3


def test_the_live_display_waits_and_then_shows_rounds() -> None:
    progress = Progress(console=Console(file=io.StringIO()))
    bars = LiveDisplay(progress)
    bars(SitesAwaited(("A", "B")))
    assert progress.tasks[0].description == "waiting for sites: A, B"
    bars(RunStarted("nuclei", "harmofl", "HarmoFL", ("A", "B"), rounds=4, done=0, score="dice", unit="%"))
    assert [task.description for task in progress.tasks if task.visible] == ["HarmoFL on nuclei"]


def test_a_stopped_run_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harmofl.deployment import coordinator

    server, _ = make_kits(tmp_path, dict.fromkeys(SITES, "synthetic"), ["histology"])

    def stopped(kit: object, wanted: object, out: Path, *more: object) -> None:
        out.mkdir()
        (out / "config.toml").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(coordinator, "coordinate", stopped)
    out = tmp_path / "run"
    assert call(monkeypatch, "deploy", "run", "--kit", server.folder, "--task", "histology", "--out", out) == 130
    hint = f"harmofl deploy run --kit {server.folder} --out {out} --resume"
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("synthetic", [True, False])
def test_the_command_that_a_stopped_run_names_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synthetic: bool
) -> None:
    task = "histology" if synthetic else "segmentation"
    names = SITES if synthetic else ["site-0", "site-1"]
    data = "synthetic" if synthetic else str(segmentation_folder(tmp_path / "images", sites=2))
    server, sites = make_kits(tmp_path, dict.fromkeys(names, data), [task])
    out = tmp_path / "run"
    begin = ["deploy", "run", "--kit", server.folder, "--out", out, "--wait", 1]
    with looped(sites):
        given = ["--task", task, "--method", "harmofl", "--preset", "smoke", "--set", "training.rounds=1"]
        assert call(monkeypatch, *begin, *given) == 0
        (out / "summary.json").unlink()
        assert call(monkeypatch, *begin, "--config", out / "config.toml", "--resume") == 0
    assert (out / "summary.json").exists()


def test_a_run_is_not_started_at_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, sites = make_kits(tmp_path, dict.fromkeys(SITES, "synthetic"), ["histology"])
    folder = sites[SITES[0]].folder
    assert call(monkeypatch, "deploy", "run", "--kit", folder, "--out", tmp_path / "run") == 2
    assert "a site's folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["init", "join", "accept", "add-site", "remove-site", "revoke", "renew", "lock", "start", "check", "run"]
)
def test_help_teaches_with_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert call(monkeypatch, "deploy", command, "--help") == 0
    assert f"harmofl deploy {command} " in capsys.readouterr().out.replace(f"Usage: harmofl deploy {command}", "")


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from harmofl.cli import app; print({'torch', 'flwr', 'nvflare', 'jinja2'} & set(sys.modules))"
    command = [HARMOFL[0], "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert result.stdout.strip() == "set()"


def test_an_app_for_somebodys_own_federation_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--engine", "flower", "--sites", "A,B", "--task", "segmentation", "--method", "harmofl"]
    options += ["--set", "training.rounds=7"]
    assert call(monkeypatch, "deploy", "app", *options, "--out", tmp_path / "app") == 0
    assert "README.md" in capsys.readouterr().out
    assert "rounds = 7" in (tmp_path / "app" / "harmofl_app" / "run.toml").read_text()
    assert 'sites = "A,B"' in (tmp_path / "app" / "pyproject.toml").read_text()
    assert call(monkeypatch, "deploy", "app", *options, "--set", "data.folder=/x", "--out", tmp_path / "other") == 2
    assert "data.folder = '/x'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
