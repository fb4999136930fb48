from pathlib import Path

import pytest

from harmofl.runs.finished import FinishedRun
from harmofl.runs.labels import label_distinctly


def labels(**titles: str) -> list[str]:
    """Of runs in these folders with these titles; `__` stands for a slash."""
    runs = [
        FinishedRun(Path("/runs") / folder.replace("__", "/"), {"title": title}, []) for folder, title in titles.items()
    ]
    return [run.title for run in label_distinctly(runs)]


def test_runs_of_one_title_carry_the_part_of_their_path_that_tells_them_apart() -> None:
    assert labels(a="FedAvg", both__seed="HarmoFL", amplitude__seed="HarmoFL") == [
        "FedAvg",
        "HarmoFL (both)",
        "HarmoFL (amplitude)",
    ]


def test_a_part_that_repeats_the_title_is_left_out() -> None:
    assert labels(harmofl="HarmoFL", amplitude="HarmoFL") == ["HarmoFL", "HarmoFL (amplitude)"]


@pytest.mark.parametrize("second", ["fedavg", "FedAvg"])
def test_names_that_differ_in_case_alone_tell_nothing_apart(second: str) -> None:
    assert labels(**{"one__fedavg": "FedAvg", f"two__{second}": "FedAvg"}) == ["FedAvg (one)", "FedAvg (two)"]
