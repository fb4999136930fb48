"""What is printed when something is done."""

from pathlib import Path

import pytest

from harmofl.cli.interrupts import how_to_resume, interruptible
from harmofl.cli.tables import WIDE, console, show_scores


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


def test_a_count_is_shown_as_a_whole_number_and_its_average_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    scores = {"A": {"images": 4.0, "distances_missing": 2.0}, "B": {"images": 2.0, "distances_missing": 1.0}}
    show_scores(scores, "dice")
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row and row[0] in ("A", "B", "average")] == [
        ["A", "4", "2"],
        ["B", "2", "1"],
        ["average", "1.5"],
    ]


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
