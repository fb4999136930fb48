"""What people see while a run trains."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from harmofl.console import (
    WIDE,
    LiveBars,
    PlainLines,
    console,
    display,
    how_to_resume,
    interruptible,
    show_scores,
    together,
)
from harmofl.tasks.scores import dice

START: dict[str, object] = {
    "phase": "start",
    "rounds": 4,
    "done": 1,
    "sites": ["A", "B"],
    "task": "nuclei",
    "title": "HarmoFL",
    "score": dice,
}
TRAINED = {"phase": "train", "round": 2, "site": "A", "loss": 0.7}
LEFT_OUT = {"phase": "train", "round": 2, "site": "B", "error": "out of memory"}
ROUND = {"phase": "train", "round": 2, "site": "server", "loss": 0.5, "seconds": 1.25, "previous_val": 0.875}


def test_plain_lines_tell_of_rounds_and_of_sites_that_were_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PlainLines()
    for record in (START, TRAINED, LEFT_OUT, ROUND, ROUND | {"phase": "val", "site": "A"}):
        lines(record)
    assert capsys.readouterr().out.splitlines() == [
        "HarmoFL on nuclei: 4 rounds",
        "  round 2: B left out: out of memory",
        "  round 2: loss 0.500, validation of round 1: 87.5 %, 1.2 s",
    ]


def test_the_bar_goes_on_where_the_run_was_and_counts_sites_and_rounds() -> None:
    output = io.StringIO()
    progress = Progress(console=Console(file=output, width=100))
    bars = LiveBars(progress)
    bars(START)
    (bar,) = progress.tasks
    assert (bar.completed, bar.total) == (1, 4)
    bars(TRAINED)
    assert bar.fields["state"] == "1/2 sites"
    bars(LEFT_OUT)
    assert "round 2: B left out: out of memory" in output.getvalue()
    bars(ROUND)
    assert bar.completed == 2
    assert bar.fields["state"] == "loss 0.500, validation of round 1: 87.5 %"
    bars(TRAINED | {"round": 3})
    assert bar.fields["state"] == "1/2 sites · loss 0.500, validation of round 1: 87.5 %"


def test_the_display_is_plain_where_nobody_looks() -> None:
    with display() as watch:
        assert isinstance(watch, PlainLines)


def test_the_display_is_live_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with display() as watch:
        assert isinstance(watch, LiveBars)


def test_work_outside_of_rounds_is_shown_live_and_plainly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records: list[dict[str, object]] = [
        {"phase": "data", "site": "A", "done": 3, "total": 9, "doing": "decoding"},
        {"phase": "data", "site": "A", "done": 4, "total": 9, "doing": "decoding"},
        {"phase": "data", "site": "A", "done": 9, "total": 9, "doing": "decoded"},
        START,
        ROUND,
        {"phase": "unseen", "site": "C", "round": 2, "metric": 0.5},
        {"phase": "evaluate", "site": "A", "done": 0, "total": 2},
        {"phase": "predict", "image": "a.png", "done": 1, "total": 2},
    ]
    with display() as watch:
        for record in records:
            watch(record)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "decoding the images of A",
        "HarmoFL on nuclei: 4 rounds",
        "round 2: loss 0.500, validation of round 1: 87.5 %, 1.2 s",
        "C, which took no part, scored",
        "scoring A",
        "a.png",
    ]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with display() as watch:
        for record in records:
            watch(record)
    assert "a.png" in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_means_that_progress_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    with display(quiet=True) as watch:
        for record in (START, TRAINED, LEFT_OUT, ROUND):
            watch(record)
    assert capsys.readouterr() == ("", "")


def test_scores_are_shown_in_percent_and_distances_in_their_unit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    one = {"images": 4.0, "loss": 0.25, "metric": 0.875, "dice_tumor": 0.5, "hd95": 3.5}
    other = {"images": 2.0, "loss": 0.75, "metric": 0.625, "dice_tumor": 1.0}
    show_scores({"A": one, "B": other}, "dice")
    heading, *rows = [line.split() for line in capsys.readouterr().out.replace("┃", " ").replace("│", " ").splitlines()]
    heading = next(row for row in [heading, *rows] if "site" in row)
    assert heading == ["site", "images", "loss", "dice", "(%)", "dice_tumor", "(%)", "hd95", "(pixels)"]
    assert ["A", "4", "0.2500", "87.50", "50.00", "3.50"] in rows
    assert ["average", "0.5000", "75.00", "75.00", "3.50"] in rows


def test_watchers_can_watch_together() -> None:
    seen: list[object] = []
    together(seen.append, seen.append)(START)
    assert seen == [START, START]


def test_an_interrupt_before_anything_was_written_promises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible(lambda: how_to_resume(tmp_path / "run")):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "\nharmofl: stopped; nothing was written yet\n"


def test_a_pipe_is_as_wide_as_tables_need_unless_someone_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == WIDE
    monkeypatch.setenv("COLUMNS", "90")
    assert console().width == 90
