from collections.abc import Callable
from pathlib import Path

import pytest

from harmofl.cli.tables import show_results
from harmofl.experiments.results import Results


def test_the_end_shows_the_table_what_is_missing_and_where_it_lies(
    results_of: Callable[..., Results], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    results = results_of({f"{row}/seed-0": {"A": 0.9, "B": 0.8} for row in ("fedavg", "amplitude")})
    results.errors["fedavg/seed-1"] = "no memory"
    show_results(results, Path("out"))
    said = capsys.readouterr()
    assert "+ amplitude against FedAvg: +0.00 points" in said.out
    assert "2 of 4 cells are done; the table and every score lie in out." in said.out
    assert said.err.splitlines() == [
        "harmofl: FedAvg, seed 1: no memory",
        "harmofl: + amplitude, seed 1: not run yet",
    ]
