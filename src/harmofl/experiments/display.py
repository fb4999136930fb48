"""What people see of an experiment in a terminal: cells done, those that run, and the time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from harmofl.console import STEPS, console, images_line
from harmofl.experiments.results import Results
from harmofl.experiments.writing import results_table, sentences
from harmofl.reporting.gallery import FOLDER
from harmofl.reporting.tables import to_rich

Record = dict[str, Any]
Watch = Callable[[Record], None]


@contextmanager
def experiment_display(quiet: bool = False) -> Iterator[Watch]:
    """A bar for the experiment and one per running cell; plain lines where nobody looks."""
    if quiet:
        yield lambda record: None
        return
    if not sys.stdout.isatty():
        yield PlainLines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[unit]} {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=Console()) as progress:
        yield LiveBars(progress)


class PlainLines:
    """One line when it begins, and one per finished cell."""

    def __init__(self) -> None:
        self._state: Record = {}
        self._told = ""
        self._images: set[str] = set()

    def __call__(self, record: Record) -> None:
        """Print what is new."""
        if record["phase"] in STEPS:
            line = STEPS[record["phase"]](record)
            if line and line != self._told:
                print(f"  {line}", flush=True)
            self._told = line or self._told
        elif record["phase"] == "images":
            if record["images"] not in self._images:
                print(images_line(record), flush=True)
            self._images.add(record["images"])
        elif record["phase"] == "cell":
            self._done(record)
        elif not self._state:
            print(f"{record['title']}: {record['done']} of {record['total']} cells are done", flush=True)
        if record["phase"] == "experiment":
            self._state = record

    def _done(self, record: Record) -> None:
        tried = self._state["done"] + self._state["failed"] + 1
        self._state = self._state | {"done": tried - self._state["failed"]}
        print(f"  {tried}/{self._state['total']} {outcome(record)}", flush=True)


class LiveBars:
    """The experiment's bar above those of its running cells; finished cells scroll by."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._images: set[str] = set()

    def __call__(self, record: Record) -> None:
        """Move the bars."""
        if record["phase"] == "cell":
            self._progress.console.print(Text(outcome(record), style="red" if "error" in record else ""))
        elif record["phase"] == "experiment":
            self._drop("data", *(self._bars.keys() - {cell["cell"] for cell in record["running"]} - {"all"}))
            self._show("all", record["title"], "cell", record["done"], record["total"], left(record))
            for cell in record["running"]:
                state = duration(cell["seconds"])
                self._show(cell["cell"], f"  {cell['cell']}", "round", cell["round"], cell["rounds"], state)
        elif record["phase"] == "images":
            if record["images"] not in self._images:
                self._progress.console.print(images_line(record), markup=False, highlight=False, soft_wrap=True)
            self._images.add(record["images"])
        elif line := STEPS[record["phase"]](record):
            self._show("data", line, "", record.get("done", 0), record.get("total") or 0, "")

    def _show(self, key: str, description: str, unit: str, completed: float, total: float, state: str) -> None:
        if key not in self._bars:
            self._bars[key] = self._progress.add_task(description, total=total, unit=unit, state=state)
        self._progress.update(
            self._bars[key], description=description, completed=completed, total=total, unit=unit, state=state
        )

    def _drop(self, *keys: str) -> None:
        for key in keys:
            if key in self._bars:
                self._progress.remove_task(self._bars.pop(key))


def outcome(record: Record) -> str:
    """A finished cell in a line."""
    if "error" in record:
        return f"{record['cell']} failed: {record['error']}"
    return f"{record['cell']}: {record['score']} in {duration(record['seconds'])}"


def left(record: Record) -> str:
    """How many cells failed, and how long the rest will take."""
    failed = f"{record['failed']} failed" if record["failed"] else ""
    known = record["seconds_left"] is not None and record["running"]
    remaining = f"about {duration(record['seconds_left'])} left" if known else ""
    return ", ".join(text for text in (failed, remaining) if text)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def show_results(results: Results, out: Path) -> None:
    """The table, whether differences are more than noise, what is missing, and where everything is."""
    shown = console()
    if results.runs:
        shown.print(to_rich(results_table(results), shown.width))
        for sentence in sentences(results):
            shown.print(Text(sentence))
    for cell in results.missing:
        message = results.errors.get(cell.path, "not run yet")
        print(f"harmofl: {cell}: {message}", file=sys.stderr)
    if results.experiment.plan.shows == "samples":
        shown.print(f"The samples and how they were chosen lie in {out / FOLDER}.", highlight=False, soft_wrap=True)
        return
    done = f"{len(results.runs)} of {len(results.experiment.cells)} cells are done"
    shown.print(f"{done}; the table and every score lie in {out}.", highlight=False, soft_wrap=True)
