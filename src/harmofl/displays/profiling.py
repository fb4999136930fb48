"""Where the time of a run goes, by part: a table, and a trace for Chrome's and Perfetto's viewers.

Nothing is measured, at next to no cost, unless a profile is being recorded. Processes that work for a run add to its
profile: each appends what it has measured to a file of its own in a folder, and the run's own process puts it together.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import torch

from harmofl.files import write_whole

Part = Literal[
    "input", "preparation", "forward", "backward", "optimizer", "scoring", "messages", "aggregation", "checkpoint"
]
PARTS: dict[Part, str] = {
    "input": "waiting for the next batch",
    "preparation": "reading, augmenting and harmonizing it, beside the training",
    "forward": "training passes of the network, and the loss",
    "backward": "gradients",
    "optimizer": "steps of the optimizer",
    "scoring": "validation and test",
    "messages": "encoding and decoding what travels between processes",
    "aggregation": "combining the sites' updates",
    "checkpoint": "writing checkpoints, records and what sites keep",
}
BESIDE: frozenset[Part] = frozenset({"preparation"})
"""Parts that run in a thread of their own, while others go on."""
MOST_EVENTS = 100_000
"""Of a process in the trace, which a viewer must hold in memory; what comes later is still counted."""

Given = ParamSpec("Given")
Item = TypeVar("Item")
_NOTHING = nullcontext()


@dataclass
class Event:
    """One stretch of time: when it started and how long it took, in nanoseconds of a clock that processes share."""

    part: Part
    start: int
    duration: int
    process: int
    thread: int


@dataclass
class Profile:
    """What one process measures."""

    events: list[Event] = field(default_factory=list)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def measure(self, part: Part) -> Iterator[None]:
        """Note how long the block takes."""
        start = time.monotonic_ns()
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # otherwise only the time to ask for the work would count
            event = Event(part, start, time.monotonic_ns() - start, os.getpid(), threading.get_ident())
            with self._one_at_a_time:
                self.events.append(event)

    def take(self) -> list[Event]:
        """What was measured since this was last asked."""
        with self._one_at_a_time:
            taken, self.events = self.events, []
        return taken


_recorded: list[Profile] = []
"""The profile of this process, if there is one."""


def is_recording() -> bool:
    """Whether anything is measured in this process."""
    return bool(_recorded)


def part(name: Part) -> AbstractContextManager[None]:
    """Measure a block as a part of the run, if a profile is recorded.

    Example:
        >>> with part("scoring"):
        ...     pass
    """
    return _recorded[0].measure(name) if _recorded else _NOTHING


def each(name: Part, items: Iterable[Item]) -> Iterator[Item]:
    """Yield items; the wait for each of them is measured, if a profile is recorded."""
    iterator = iter(items)
    while True:
        with part(name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


def timed(name: Part) -> Callable[[Callable[Given, Item]], Callable[Given, Item]]:
    """Let every call of a function count as a part of the run."""

    def decorate(function: Callable[Given, Item]) -> Callable[Given, Item]:
        @wraps(function)
        def measured(*args: Given.args, **kwargs: Given.kwargs) -> Item:
            with part(name):
                return function(*args, **kwargs)

        return measured

    return decorate


def join(folder: Path) -> None:
    """Let a process that works for a run take part in its profile, if one is recorded."""
    if folder.is_dir() and not _recorded:
        _recorded.append(Profile())


def leave_events(folder: Path) -> None:
    """Add what this process has measured since the last time to its file; nothing if no profile is recorded."""
    if _recorded and (events := _recorded[0].take()):
        lines = "".join(json.dumps([e.part, e.start, e.duration, e.thread]) + "\n" for e in events)
        with open(folder / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
            file.write(lines)


@contextmanager
def recording(folder: Path, trace: Path) -> Iterator[None]:
    """Record a profile of the block, in which processes that `join` take part; then write it to `trace`."""
    folder.mkdir(exist_ok=True)
    _recorded.append(Profile())
    start = time.monotonic_ns()
    try:
        yield
    finally:
        duration = time.monotonic_ns() - start
        leave_events(folder)
        _recorded.clear()
        events = [event for file in sorted(folder.glob("*.jsonl")) for event in read_events(file)]
        shutil.rmtree(folder, ignore_errors=True)
        write_whole(trace, json.dumps(to_trace(events, start, duration)).encode())


def read_events(file: Path) -> list[Event]:
    """What a process has measured; a last line that is not whole is left out."""
    events = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            name, start, duration, thread = json.loads(line)
        except ValueError:
            continue
        events.append(Event(name, start, duration, int(file.stem), thread))
    return events


def to_trace(events: list[Event], start: int, duration: int) -> dict[str, object]:
    """A profile in the format of Chrome's trace viewer, with the sums of its parts beside."""
    shown: list[dict[str, object]] = []
    counts: dict[int, int] = {}
    totals: dict[str, dict[str, float]] = {}
    for event in sorted(events, key=lambda event: event.start):
        total = totals.setdefault(event.part, {"seconds": 0.0, "times": 0})
        total["seconds"] += event.duration / 1e9
        total["times"] += 1
        counts[event.process] = counts.get(event.process, 0) + 1
        if counts[event.process] <= MOST_EVENTS:
            place = {"pid": event.process, "tid": event.thread}
            when = {"ts": (event.start - start) / 1e3, "dur": event.duration / 1e3}
            shown.append({"name": event.part, "ph": "X", **when, **place})
    other = {"parts": totals, "seconds": duration / 1e9, "processes": len(counts)}
    return {"traceEvents": shown, "displayTimeUnit": "ms", "otherData": other}
