"""The file of measured terms, and the cells that it belongs to."""

from pathlib import Path

import pytest

from harmofl.analysis.measured_terms import FILE, RunTerms, Terms, read_terms, terms_of_cells, write_terms
from harmofl.errors import UsageError


def measured(run: str, label: str = "FedAvg") -> RunTerms:
    terms = Terms(2, {"A": 1.0}, {"A": 2.0}, 3.0, {"A": 0.5}, {"gradient": 1.0, "noise": 2.0})
    return RunTerms(run, label, {"A": {1: 0.5, 2: 0.25}}, terms)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_terms(tmp_path, [measured("../run")])
    assert read_terms(tmp_path) == [measured("../run")]
    assert read_terms(tmp_path / "elsewhere") == []


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"runs": [{"run": "x"}]}')
    with pytest.raises(UsageError, match=r"drift-terms\.json is not what harmofl landscape writes"):
        read_terms(tmp_path)


def test_terms_take_the_labels_of_an_experiments_cells_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "landscape").mkdir()
    runs = [
        measured("../both/seed-0", "HarmoFL (seed-0)"),
        measured("../fedavg/seed-0"),
        measured("../../other/seed-0"),
    ]
    write_terms(tmp_path / "landscape", runs)
    cells = {"fedavg/seed-0": ("FedAvg", 0), "fedavg/seed-1": ("FedAvg", 1), "both/seed-0": ("+ both", 0)}
    assert [run.label for run in terms_of_cells(cells, tmp_path)] == ["FedAvg", "+ both"]
    write_terms(tmp_path, [measured("fedavg/seed-1")])
    assert [run.label for run in terms_of_cells(cells, tmp_path)] == ["FedAvg, seed 0", "FedAvg, seed 1", "+ both"]
    assert terms_of_cells({}, tmp_path) == []
