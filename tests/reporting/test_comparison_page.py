import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import harmofl
from chromium import open_page
from folders import segmentation_folder
from harmofl.analysis.comparison import Comparison
from harmofl.cli import app
from harmofl.reporting.comparison_page import NUMBERS, PAGE, Compared, train_command
from harmofl.settings import resolve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return segmentation_folder(tmp_path_factory.mktemp("images"), sites=3, patients=6)


def test_the_page_shows_every_hospital_the_advice_and_the_command(folder: Path, tmp_path: Path) -> None:
    comparison = harmofl.compare_data(
        "segmentation", data=folder, preset="smoke", out=tmp_path / "out", settings={"data.cache": str(tmp_path)}
    )
    assert comparison.advice[1].kind == "harmonize"  # each site of the folder is brighter than the one before
    document = open_page(tmp_path / "out" / PAGE, tmp_path / "profile")
    for site in ("site-0", "site-1", "site-2"):
        assert f'<th scope="row">{site}</th>' in document
    assert "harmofl train --task segmentation --method freshbn --data" in document
    assert document.count("<svg") == 4  # samples, histograms, spectra, probes
    assert "40 × 40" in document
    numbers = json.loads((tmp_path / "out" / NUMBERS).read_text())
    assert numbers == json.loads(json.dumps(comparison.to_json()))
    assert numbers["sites"]["site-1"]["original"][0] >= 0


def test_the_command_prints_a_table_and_advice_or_json(folder: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    arguments = ["data", "compare", "--task", "segmentation", "--data", str(folder), "--preset", "smoke"]
    arguments += ["--set", f"data.cache={tmp_path}", "--quiet"]
    printed = runner.invoke(app, arguments)
    assert printed.exit_code == 0
    assert "site-2" in printed.output
    assert "Let each hospital estimate its own batch norm statistics." in printed.output
    assert "--method freshbn" in printed.output
    as_json = runner.invoke(app, [*arguments, "--json"])
    assert list(json.loads(as_json.output)["sites"]) == ["site-0", "site-1", "site-2"]


def test_the_command_trains_on_what_was_compared() -> None:
    settings, _ = resolve("prostate", "fedavg", "smoke", overrides={"data.dimensions": 3})
    compared = Compared(Comparison("prostate", "segmentation", "synthetic hospitals", {}), settings)
    expected = "harmofl train --task prostate --method fedavg --preset smoke --set data.dimensions=3 --out runs/first"
    assert train_command(compared) == expected
