"""An experiment that draws samples of every hospital and trains nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from folders import camelyon17_folder
from harmofl.cli.tables import show_results
from harmofl.errors import UsageError
from harmofl.experiments.report import write_report
from harmofl.experiments.runner import run_experiment

FILE = Path(__file__).parents[2] / "experiments" / "figure-samples.toml"


def chosen(out: Path) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads((out / "pictures" / "pictures.json").read_text())["chosen"]
    return numbers


def test_every_hospital_shows_a_normal_image_and_a_tumor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = run_experiment(FILE, tmp_path / "out", preset="smoke")
    show_results(results, tmp_path / "out")
    assert "The samples" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out" / "pictures").iterdir()} == {
        *("samples.png", "samples.svg", "pictures.md", "pictures.json"),
    }
    assert set(chosen(tmp_path / "out")) == {f"hospital-{number}" for number in range(5)}
    assert set(chosen(tmp_path / "out")["hospital-0"]) == {"example", "normal", "tumor"}
    state = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (state["shows"], state["cells"]) == ("samples", [])
    with pytest.raises(UsageError, match="trains nothing: its pictures are in"):
        write_report(tmp_path / "out")


def test_the_hospitals_of_a_folder_too_and_again_with_resume(tmp_path: Path) -> None:
    folder, out = camelyon17_folder(tmp_path / "images"), tmp_path / "out"
    run_experiment(FILE, out, folder, "smoke")
    assert len(chosen(out)) == 2
    with pytest.raises(UsageError, match="already holds an experiment"):
        run_experiment(FILE, out, folder, "smoke")
    run_experiment(FILE, out, folder, "smoke", resume=True)
    with pytest.raises(UsageError, match="holds another experiment"):
        run_experiment(FILE, out, None, "smoke", resume=True)
