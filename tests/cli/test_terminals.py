"""Terminals that are narrow or that cannot show every character."""

import io
import os
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from folders import segmentation_folder
from harmofl import registry
from harmofl.cli.tables import make_table
from harmofl.settings import setting_names
from runs import HARMOFL, environment

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


def show(command: str, may_warn: bool = False, **more: str) -> str:
    """What a command prints in a terminal of 80 columns."""
    variables = environment() | {"COLUMNS": "80"} | more
    done = subprocess.run([*HARMOFL, *command.split()], capture_output=True, env=variables, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b"" or (may_warn and b"Traceback" not in done.stderr)
    return done.stdout.decode(more.get("PYTHONIOENCODING", "utf-8"))


@pytest.mark.parametrize("command", NAMES)
def test_names_to_type_are_whole_in_eighty_columns(command: str) -> None:
    shown = show(command)
    assert [name for name in NAMES[command] if name not in shown] == []
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
@pytest.mark.parametrize("command", NAMES)
def test_a_terminal_that_is_not_utf_8_shows_the_same_names(command: str, encoding: str) -> None:
    shown = show(command, PYTHONIOENCODING=encoding)
    assert [name for name in NAMES[command] if name not in shown] == []


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_names_of_hospitals_that_a_terminal_cannot_show_stop_nothing(tmp_path: Path, encoding: str) -> None:
    folder = segmentation_folder(tmp_path / "data")
    manifest = folder / "manifest.csv"
    rows = (line.replace("site-0,", "東京病院,", 1) for line in manifest.read_text().splitlines())
    manifest.write_text("\n".join(rows), encoding="utf-8")
    encoded = {"PYTHONIOENCODING": encoding, "HARMOFL_CACHE": os.environ["HARMOFL_CACHE"]}
    checked = show(f"data check --task segmentation --data {folder} --sheet {tmp_path / 'sheet.png'}", True, **encoded)
    assert "????" in checked
    out = tmp_path / "run"
    options = "--preset smoke --set data.size=32 --set training.rounds=1 --set federation.workers=1"
    trained = show(f"train --task segmentation --method fedavg --data {folder} {options} --out {out}", **encoded)
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
