"""The demonstration, at the smallest size."""

import re
from pathlib import Path

import pytest

from harmofl.events import ignore
from harmofl.experiments.demo import METHODS, run_demo, tell_shifts
from harmofl.runs.finished import read_run
from written_runs import write_run


@pytest.mark.slow
def test_the_demo_tells_three_runs_why_they_differ_and_what_to_do_next(tmp_path: Path) -> None:
    runs, page = run_demo(tmp_path, ignore, preset="smoke")
    assert [run.method for run in runs] == list(METHODS)
    text = page.read_text(encoding="utf-8")
    assert re.search(r"features lie \d+\.\d\d deviations from the averaged statistics", text)
    assert "harmofl data compare --task segmentation --data my-images" in text
    before = {run.folder: (run.folder / "summary.json").read_bytes() for run in runs}
    run_demo(tmp_path, ignore, preset="smoke")  # again: nothing is trained twice
    assert before == {folder: (folder / "summary.json").read_bytes() for folder in before}


def test_the_shift_that_is_told_is_that_of_the_hospital_where_the_first_run_does_worst(tmp_path: Path) -> None:
    worse = read_run(write_run(tmp_path / "one", "fedavg", {"A": 0.9, "B": 0.6}))
    better = read_run(write_run(tmp_path / "two", "harmofl", {"A": 0.91, "B": 0.89}))
    told = tell_shifts([worse, better], {"FedAvg": {"A": 0.1, "B": 1.25}, "HarmoFL": {"A": 0.2, "B": 0.5}})
    assert told.endswith(
        "FedAvg does worst at B (60.0 %), whose features lie 1.25 deviations from the averaged statistics; HarmoFL "
        "scores 89.0 % there, at 0.50."
    )
    assert tell_shifts([worse, better], {}).endswith("FedAvg does worst at B (60.0 %).")
