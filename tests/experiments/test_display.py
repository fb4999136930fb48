import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from harmofl.experiments.display import LiveBars, PlainLines, duration, left, show_results
from harmofl.experiments.results import Results


def state(
    done: int, failed: int = 0, running: tuple[str, ...] = (), seconds_left: float | None = None
) -> dict[str, Any]:
    cells = [{"cell": cell, "round": 3, "rounds": 12, "seconds": 41.2} for cell in running]
    counts = {"total": 4, "done": done, "failed": failed, "running": cells, "seconds_left": seconds_left}
    return {"phase": "experiment", "title": "Norms", **counts}


RECORDS = [
    {"phase": "data", "doing": "decoding", "site": "hospital-0", "done": 1, "total": 5},
    state(1, running=("FedAvg, seed 0", "[HarmoFL], seed 0"), seconds_left=1800.0),
    {"phase": "cell", "cell": "FedAvg, seed 0", "seconds": 130.0, "score": "83.46 %"},
    {"phase": "cell", "cell": "[HarmoFL], seed 0", "seconds": 9.0, "error": "no memory"},
    state(2, failed=1, running=("FedAvg, seed 1",), seconds_left=90.0),
]


def test_plain_lines_tell_of_each_cell_once(capsys: pytest.CaptureFixture[str]) -> None:
    watch = PlainLines()
    for record in RECORDS:
        watch(record)
    assert capsys.readouterr().out.splitlines() == [
        "  decoding the images of hospital-0",
        "Norms: 1 of 4 cells are done",
        "  2/4 FedAvg, seed 0: 83.46 % in 2 min",
        "  3/4 [HarmoFL], seed 0 failed: no memory",
    ]


def test_live_bars_show_the_running_cells_and_drop_those_that_ended() -> None:
    progress = Progress(console=Console(file=io.StringIO(), width=120))
    watch = LiveBars(progress)
    for record in RECORDS[:2]:
        watch(record)
    assert [task.description for task in progress.tasks] == ["Norms", "  FedAvg, seed 0", "  [HarmoFL], seed 0"]
    for record in RECORDS[2:]:
        watch(record)
    bars = [(task.description, task.completed, task.total) for task in progress.tasks]
    assert bars == [("Norms", 2, 4), ("  FedAvg, seed 1", 3, 12)]
    assert progress.tasks[0].fields["state"] == "1 failed, about 90 s left"


def test_times_are_told_as_people_tell_them() -> None:
    assert [duration(seconds) for seconds in (41.2, 130, 9000)] == ["41 s", "2 min", "2.5 h"]
    assert left(state(0, running=("a",))) == ""


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
