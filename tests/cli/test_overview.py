"""`harmofl runs`: what there is in a folder, and two runs side by side."""

import json
import re
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from harmofl.cli import app
from harmofl.errors import UsageError
from runs import start
from written_runs import write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "fedavg", "fedavg", {"A": 0.9, "B": 0.8, "C": 0.7})
    write_run(tmp_path / "ours", "harmofl", {"A": 0.92, "B": 0.78, "C": 0.76}, rounds=8)
    failed = write_run(tmp_path / "broken", "fedavg", {"A": 0.5, "B": 0.5})
    (failed / "summary.json").unlink()
    (failed / "checkpoint").mkdir()
    (failed / "failure.txt").write_text("round 7: 0 of 2 sites gave a usable answer\n")
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "140"}).invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def cells(table: str, first: str) -> list[str]:
    row = next(line for line in table.splitlines() if line.startswith(f"│ {first} "))
    return [cell.strip() for cell in row.strip("│").split("│")]


def test_runs_are_listed_with_method_images_rounds_score_and_state(folder: Path) -> None:
    table = run("runs", folder)
    images = "synthetic hospitals"
    assert cells(table, "ours") == ["ours", "harmofl", "histology", images, "8", "82.00 %", "finished"]
    *_, rounds, score, state = cells(table, "broken")
    assert (rounds, score) == ("6", "50.00 % (validation)")
    assert state == "failed: round 7: 0 of 2 sites gave a usable answer"
    listed = json.loads(run("runs", folder, "--json"))
    assert [each["run"] for each in listed] == ["broken", "fedavg", "ours"]
    assert listed[2]["test"] == pytest.approx(0.82)
    assert listed[0]["problem"].startswith("round 7")


def test_two_runs_stand_side_by_side(folder: Path) -> None:
    table = run("runs", folder, "fedavg", "ours")
    assert cells(table, "training.rounds") == ["training.rounds", "6", "8"]
    assert cells(table, "method.radius") == ["method.radius", "–", "0.05"]
    assert "seed" not in table  # it is the same in both
    assert cells(table, "B") == ["B", "80.00", "78.00", "-2.00"]
    assert cells(table, "average") == ["average", "80.00", "82.00", "+2.00"]
    compared = json.loads(run("runs", folder, "fedavg", folder / "ours", "--json"))
    assert compared["settings"]["method.name"] == ["fedavg", "harmofl"]
    assert compared["scores"]["C"] == [0.7, 0.76]
    assert compared["phase"] == "test"


def test_a_run_without_a_test_is_compared_by_its_best_validation(folder: Path) -> None:
    table = run("runs", folder, "broken", "fedavg")
    assert "validation images, at the best round so far" in " ".join(table.split())
    assert cells(table, "C")[1] == "–"


def test_what_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    for names, message in ((["our", "fedavg"], "did you mean 'ours'"), (["ours"], "name two runs")):
        with pytest.raises(UsageError, match=message):
            run("runs", folder, *names)
    (tmp_path / "empty").mkdir()
    assert "No run lies in" in run("runs", tmp_path / "empty")


@pytest.mark.slow
def test_the_page_is_served_until_ctrl_c(folder: Path) -> None:
    process = start(["watch", str(folder / "ours"), "--port=0"])
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"Watching .*ours: (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line)
    assert found, line
    with urlopen(found[1], timeout=30) as answer:
        assert "HarmoFL on histology" in answer.read().decode()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
