"""What people see while a run trains or an experiment runs."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from harmofl.displays import open_display, show_progress
from harmofl.displays.live import LiveDisplay, time_left
from harmofl.displays.plain import PlainDisplay
from harmofl.events import (
    CellFinished,
    Event,
    ExperimentProgressed,
    ImagesChosen,
    ImagesRead,
    ImagesReady,
    RoundFinished,
    RoundsFinished,
    RunningCell,
    RunStarted,
    SiteAnswered,
    SiteLeftOut,
    SiteScored,
    StepDone,
)

STARTED = RunStarted("nuclei", "harmofl", "HarmoFL", ("A", "B"), rounds=4, done=1, score="dice", unit="%")
TRAINED = SiteAnswered(2, "A", "train", {"loss": 0.7})
LEFT_OUT = SiteLeftOut(2, "B", "train", "out of [memory]")
ROUND = RoundFinished(2, loss=0.5, seconds=1.25, previous_score=0.875)
RUN: list[Event] = [
    ImagesChosen("synthetic hospitals"),
    ImagesRead("A", "decoding", 3, 9),
    ImagesRead("A", "decoding", 4, 9),
    ImagesReady("A", 9),
    STARTED,
    TRAINED,
    LEFT_OUT,
    SiteScored(1, "A", "val", {"metric": 0.9}),
    ROUND,
    RoundsFinished(4),
    SiteScored(2, "C", "unseen", {"metric": 0.5}),
    StepDone("scoring A", 0, 2),
    StepDone("a.png", 1, 2),
]


def experiment(
    done: int, failed: int = 0, running: tuple[str, ...] = (), seconds_left: float | None = None
) -> ExperimentProgressed:
    cells = tuple(RunningCell(cell, round=3, rounds=12, seconds=41.2) for cell in running)
    return ExperimentProgressed("Norms", 4, done, failed, cells, seconds_left)


EXPERIMENT: list[Event] = [
    ImagesChosen("/images"),
    ImagesChosen("/images"),
    ImagesRead("hospital-0", "decoding", 1, 5),
    experiment(1, running=("FedAvg, seed 0", "[HarmoFL], seed 0"), seconds_left=1800.0),
    CellFinished("FedAvg, seed 0", 130.0, tried=2, total=4, score="83.46 %"),
    CellFinished("[HarmoFL], seed 0", 9.0, tried=3, total=4, error="no memory"),
    experiment(2, failed=1, running=("FedAvg, seed 1",), seconds_left=90.0),
]


def live(width: int = 120) -> tuple[LiveDisplay, Progress, io.StringIO]:
    output = io.StringIO()
    progress = Progress(console=Console(file=output, width=width))
    return LiveDisplay(progress), progress, output


def test_plain_lines_tell_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    watch = PlainDisplay()
    for event in RUN:
        watch(event)
    assert capsys.readouterr().out.splitlines() == [
        "Images: synthetic hospitals",
        "  decoding the images of A",
        "HarmoFL on nuclei: 4 rounds",
        "  round 2: B left out: out of [memory]",
        "  round 2: loss 0.500, validation of round 1: 87.5 %, 1.2 s",
        "  scoring and writing the selected model",
        "  C, which took no part, scored",
        "  scoring A",
        "  a.png",
    ]


def test_both_displays_say_once_that_a_preset_takes_only_some_images_of_a_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_live, _, output = live()
    for watch in (PlainDisplay(), show_live):
        watch(ImagesChosen("/images", limit=30))
        watch(ImagesChosen("/images", limit=30))
    expected = "Images: /images, at most 30 of each training site (data.limit)\n"
    assert (capsys.readouterr().out, output.getvalue()) == (expected, expected)


def test_plain_lines_tell_of_each_cell_once(capsys: pytest.CaptureFixture[str]) -> None:
    watch = PlainDisplay()
    for event in EXPERIMENT:
        watch(event)
    assert capsys.readouterr().out.splitlines() == [
        "Images: /images",
        "  decoding the images of hospital-0",
        "Norms: 1 of 4 cells are done",
        "  2/4 FedAvg, seed 0: 83.46 % in 2 min",
        "  3/4 [HarmoFL], seed 0 failed: no memory",
    ]


def test_a_score_that_is_no_percentage_is_shown_in_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    watch = PlainDisplay()
    watch(RunStarted("nuclei", "fedavg", "FedAvg", ("A",), rounds=2, done=0, score="hd95", unit="pixels"))
    watch(RoundFinished(2, loss=0.5, seconds=1.0, previous_score=3.456))
    assert (
        capsys.readouterr().out.splitlines()[-1] == "  round 2: loss 0.500, validation of round 1: 3.46 pixels, 1.0 s"
    )


def test_the_bar_goes_on_where_the_run_was_and_counts_sites_and_rounds() -> None:
    watch, progress, output = live()
    watch(ImagesChosen("/images"))
    watch(ImagesRead("A", "decoding", 3, 9))
    assert [task.description for task in progress.tasks] == ["decoding the images of A"]
    watch(STARTED)
    (bar,) = progress.tasks
    assert (bar.completed, bar.total, bar.fields["count"]) == (1, 4, "round 1/4")
    watch(TRAINED)
    assert bar.fields["state"] == "1/2 sites"
    watch(LEFT_OUT)
    watch(ROUND)
    assert bar.completed == 2
    assert bar.fields["state"] == "loss 0.500, validation of round 1: 87.5 % · 2 s left"  # two rounds of 1.25 s
    watch(SiteAnswered(3, "A", "train", {"loss": 0.7}))
    assert bar.fields["state"].startswith("1/2 sites · loss 0.500")
    watch(RoundsFinished(4))
    assert bar.fields["state"] == "scoring and writing the selected model"
    assert output.getvalue().splitlines() == ["Images: /images", "round 2: B left out: out of [memory]"]


def test_live_bars_show_the_running_cells_and_drop_those_that_ended() -> None:
    watch, progress, output = live()
    for event in EXPERIMENT[:4]:
        watch(event)
    assert [task.description for task in progress.tasks] == ["Norms", "  FedAvg, seed 0", "  [HarmoFL], seed 0"]
    for event in EXPERIMENT[4:]:
        watch(event)
    bars = [(task.description, task.completed, task.total) for task in progress.tasks]
    assert bars == [("Norms", 2, 4), ("  FedAvg, seed 1", 3, 12)]
    assert progress.tasks[0].fields["state"] == "1 failed, about 90 s left"
    assert output.getvalue().splitlines()[0] == "Images: /images"


def test_nothing_is_said_of_the_time_left_before_a_cell_is_finished() -> None:
    assert time_left(experiment(0, running=("a",))) == ""


def test_a_command_shows_plain_lines_where_nobody_looks_and_bars_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_display() as watch:
        assert isinstance(watch, PlainDisplay)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with open_display() as watch:
        assert isinstance(watch, LiveDisplay)


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_means_that_progress_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    with open_display(quiet=True) as watch:
        for event in RUN + EXPERIMENT:
            watch(event)
    assert capsys.readouterr() == ("", "")


def test_every_event_of_a_run_can_be_shown_live(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with open_display() as watch:
        for event in RUN:
            watch(event)
    out = capsys.readouterr().out
    assert "Images: synthetic hospitals" in out
    assert "a.png" in out


def test_a_call_from_python_shows_bars_in_a_terminal_beside_the_callers_own_watch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Event] = []
    with show_progress(True, seen.append) as watch:
        watch(STARTED)
    assert (seen, capsys.readouterr().out) == ([STARTED], "")  # not in a terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with show_progress(True, seen.append) as watch:
        watch(STARTED)
    assert seen == [STARTED, STARTED]
    assert "HarmoFL on nuclei" in capsys.readouterr().out
    with show_progress(False, seen.append) as watch:
        watch(STARTED)
    assert capsys.readouterr().out == ""


def test_a_notebook_counts_as_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmofl.displays.in_notebook", lambda: True)
    with show_progress(True) as watch:
        assert isinstance(watch.watches[0], LiveDisplay)  # type: ignore[attr-defined]


def test_of_many_steps_plain_lines_tell_about_twenty(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    for number in range(500):
        display(StepDone(f"{number}.png", number, 500))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["  0 of 500: 0.png", "  25 of 500: 25.png"]
    assert len(lines) == 20


def test_the_time_left_of_other_work_follows_from_the_steps_that_were_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moments = iter([0.0, 10.0, 100.0, 400.0, 5000.0])
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("harmofl.displays.pace.time", clock)
    show_live, progress, _ = live()
    display = PlainDisplay()
    states = []
    for done, total in ((1, 40), (2, 40), (20, 40), (21, 60), (1, 30)):
        now = next(moments)
        for watch in (show_live, display):
            watch(StepDone(f"row {done}", done, total))
        states.append(progress.tasks[0].fields["state"])
    # 10 s for one, 38 to go; 100 s for 19, 20 to go; 400 s for 20, 39 to go as more was added; then other work begins
    assert states == ["", "about 6 min left", "about 2 min left", "about 13 min left", ""]
    assert capsys.readouterr().out.splitlines() == [
        "  2 of 40: row 2, about 6 min left",
        "  20 of 40: row 20, about 2 min left",
        "  21 of 60: row 21, about 13 min left",
    ]
