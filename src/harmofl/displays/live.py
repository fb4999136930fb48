"""Live bars: one per run, with the sites that have answered; one per experiment, above those of its running cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from harmofl.displays.pace import Pace
from harmofl.displays.words import (
    describe_cell,
    describe_early_stop,
    describe_images,
    describe_round,
    describe_step,
    duration,
)
from harmofl.events import (
    CellFinished,
    Event,
    ExperimentProgressed,
    ImagesChosen,
    ImagesReady,
    RoundFinished,
    RoundsFinished,
    RoundStarted,
    RunStarted,
    SiteAnswered,
    SiteLeftOut,
    StepDone,
)

STEP = "step"
WIDE_ENOUGH = 100
"""Characters in a line that leave room for long bars."""


@contextmanager
def show_live() -> Iterator[LiveDisplay]:
    """Bars that move until the block ends."""
    console = Console()
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        BarColumn(bar_width=40 if console.width >= WIDE_ENOUGH else 12),
        TextColumn("{task.fields[count]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[state]}", markup=False, table_column=Column(overflow="fold")),
    )
    with Progress(*columns, console=console) as progress:
        yield LiveDisplay(progress)


def in_notebook() -> bool:
    """Whether output is shown in a notebook."""
    return Console().is_jupyter


class LiveDisplay:
    """Moves the bars of a run or of an experiment; what must not scroll away stands above them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._images: set[ImagesChosen] = set()
        self._run: RunStarted | None = None
        self._asked = 0
        self._answered = 0
        self._seconds: list[float] = []
        self._state = ""
        self._pace = Pace()

    def __call__(self, event: Event) -> None:
        """Show what the event says."""
        match event:
            case ImagesChosen():
                if event not in self._images:
                    self._say(describe_images(event))
                self._images.add(event)
            case SiteLeftOut():
                self._say(f"round {event.round}: {event.site} left out: {event.reason}", "yellow")
            case CellFinished():
                self._say(describe_cell(event), "red" if event.error else "")
            case ImagesReady():
                self._drop(STEP)
            case ExperimentProgressed():
                self._show_experiment(event)
            case RunStarted() | RoundStarted() | SiteAnswered() | RoundFinished() | RoundsFinished():
                self._show_run(event)
            case _:
                self._show_step(event)

    def _say(self, line: str, style: str = "") -> None:
        self._progress.console.print(Text(line, style=style), soft_wrap=True)

    def _show_run(self, event: RunStarted | RoundStarted | SiteAnswered | RoundFinished | RoundsFinished) -> None:
        match event:
            case RunStarted():
                self._drop(STEP)  # what came before the rounds is over
                self._run, self._answered, self._seconds, self._state = event, 0, [], ""
                self._asked = len(event.sites)
                self._show_rounds(event.done)
            case RoundStarted():
                self._asked = len(event.asked)
            case SiteAnswered(phase="train") if self._run:
                self._answered += 1
                self._show_rounds(event.round - 1, f"{self._answered}/{self._asked} sites")
            case RoundFinished():
                self._answered, self._state = 0, describe_round(event, self._run)
                self._seconds.append(event.seconds)
                self._show_rounds(event.round)
            case RoundsFinished():
                if event.without_improvement:
                    self._say(describe_early_stop(event.round, event.without_improvement))
                self._state, self._seconds = "", []
                self._show_rounds(event.round, "scoring and writing the selected model")

    def _show_rounds(self, done: int, first: str = "") -> None:
        run = self._run
        if run is None:
            return
        left = (run.rounds - done) * statistics.fmean(self._seconds) if self._seconds else 0.0
        remaining = f"{duration(left)} left" if left else ""
        state = " · ".join(words for words in (first, self._state, remaining) if words)
        self._show(f"{run.title} on {run.task}", "round", done, run.rounds, state)

    def _show_experiment(self, event: ExperimentProgressed) -> None:
        titles = {f"  {cell.cell}": cell for cell in event.running}
        self._drop(*(key for key in self._bars if key != event.title and key not in titles))
        self._show(event.title, "cell", event.done, event.total, time_left(event))
        for title, cell in titles.items():
            self._show(title, "round", cell.round, cell.rounds, duration(cell.seconds))

    def _show_step(self, event: Event) -> None:
        """A bar of its own for work outside of rounds."""
        if words := describe_step(event):
            done, total = getattr(event, "done", 0), getattr(event, "total", 1)
            left = self._pace.time_left(event) if isinstance(event, StepDone) else ""
            self._show(words, "", done, total, left, key=STEP)

    def _show(self, title: str, unit: str, done: float, total: float, state: str, key: str = "") -> None:
        key, count = key or title, f"{unit} {done:.0f}/{total:.0f}".strip()
        if key not in self._bars:
            self._bars[key] = self._progress.add_task(title, total=total, count=count, state=state)
        self._progress.update(self._bars[key], description=title, completed=done, total=total, count=count, state=state)

    def _drop(self, *keys: str) -> None:
        for key in keys:
            if key in self._bars:
                self._progress.remove_task(self._bars.pop(key))


def time_left(event: ExperimentProgressed) -> str:
    """How many cells failed, and how long the rest will take."""
    failed = f"{event.failed} failed" if event.failed else ""
    known = event.seconds_left is not None and event.running
    remaining = f"about {duration(event.seconds_left or 0.0)} left" if known else ""
    return ", ".join(text for text in (failed, remaining) if text)
