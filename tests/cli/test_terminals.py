"""Terminals that are narrow or that cannot show every character."""

import io
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from folders import segmentation_folder
from harmofl import registry
from harmofl.cli.tables import make_table
from harmofl.settings import setting_names
from runs import HARMOFL, call, environment

NAMES = {
    "methods": [*registry.methods.names(), "method.temperature", "method.radius", "training.optimizer_state"],
    "tasks": [
        *setting_names(),
        *registry.tasks.names(),
        *("paper", "paper-code", "small", "smoke"),
        *("hospital-4", "MoNuSAC-prostate", "ISBI_1.5"),
    ],
    "--help": ["experiment", "landscape", "--version"],
    "train --help": ["NAME=VALUE", "--workers", "--resume"],
    "data check --help": ["--sheet", "--write-clean-manifest"],
    "predict --help": ["--batch-size", "--dicom-seg", "MODEL_DIR"],
    "landscape --help": ["--local-epochs", "--points"],
    "deploy --help": ["remove-site", "add-site"],
    "deploy init --help": ["--synthetic", "--server"],
}


def show(command: str, encoding: str = "utf-8", may_warn: bool = False) -> str:
    """What a command prints in a terminal of 80 columns."""
    done = call(command.split(), columns=80, encoding=encoding)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or (may_warn and "Traceback" not in done.stderr)
    return done.stdout


@pytest.mark.parametrize("command", NAMES)
def test_names_to_type_are_whole_in_eighty_columns(command: str) -> None:
    shown = show(command)
    assert [name for name in NAMES[command] if name not in shown] == []
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
@pytest.mark.parametrize("command", NAMES)
def test_a_terminal_that_is_not_utf_8_shows_the_same_names(command: str, encoding: str) -> None:
    shown = show(command, encoding)
    assert [name for name in NAMES[command] if name not in shown] == []


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_process_that_is_told_the_encoding_replaces_what_it_cannot_show(tmp_path: Path, encoding: str) -> None:
    folder = tmp_path / "東京病院"
    folder.mkdir()
    variables = environment() | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([*HARMOFL, "runs", str(folder)], capture_output=True, env=variables, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"No run lies in" in done.stdout
    assert b"????" in done.stdout


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_names_of_hospitals_that_a_terminal_cannot_show_stop_nothing(tmp_path: Path, encoding: str) -> None:
    folder = segmentation_folder(tmp_path / "data")
    manifest = folder / "manifest.csv"
    rows = (line.replace("site-0,", "東京病院,", 1) for line in manifest.read_text().splitlines())
    manifest.write_text("\n".join(rows), encoding="utf-8")
    check = f"data check --task segmentation --data {folder} --sheet {tmp_path / 'sheet.png'}"
    checked = show(check, encoding, may_warn=True)
    assert "????" in checked
    out = tmp_path / "run"
    options = "--preset smoke --set data.size=32 --set training.rounds=1 --set federation.workers=1"
    trained = show(f"train --task segmentation --method fedavg --data {folder} {options} --out {out}", encoding)
    assert "????" in trained
    assert (out / "summary.json").exists()


def test_a_cell_that_is_too_long_is_folded_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    table = make_table("--set", "meaning", whole=["--set"])
    table.add_row("training.learning_rate_schedule", "over the rounds")
    shown = Console(file=io.StringIO(), width=24)
    shown.print(table)
    rows = [line.split("│")[1].strip() for line in shown.file.getvalue().splitlines() if "│" in line]  # type: ignore[attr-defined]
    assert "".join(rows) == "training.learning_rate_schedule"
