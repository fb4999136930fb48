"""What a benchmark is: a function that gives samples of ratios, and the bounds that their medians must keep.

Ratios are of CPU seconds, measured in turns in one run (A, B, A, B, …): they hold on machines of other speeds, and on
machines that others use at the same time.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from harmofl.federation.lean_imports import import_lean

import_lean()  # as the command does, in every process of a benchmark

Work = Callable[[], object]
Samples = Mapping[str, Sequence[float]]
"""The samples of one run, by the names of what was measured."""


@dataclass(frozen=True)
class Bound:
    """What a median must keep; without a bound it is only reported."""

    name: str
    at_most: float | None = None
    at_least: float | None = None
    quick: float | None = None
    """The wide bound of the quick run, which a change of a third breaks; None: not asked there."""
    unit: str = ""
    """Of what is no ratio."""
    aim: float | None = None
    """Where we would like to be, if the bound is not there yet."""

    def limit(self, is_quick: bool) -> float | None:
        """The bound of a run."""
        return self.quick if is_quick else self.at_most if self.at_most is not None else self.at_least

    def holds(self, value: float, is_quick: bool = False) -> bool:
        """Whether a median keeps the bound.

        >>> Bound("loop", at_most=1.05, quick=1.3).holds(1.2), Bound("loop", at_most=1.05, quick=1.3).holds(1.2, True)
        (False, True)
        """
        limit = self.limit(is_quick)
        if limit is None:
            return True
        return value <= limit if self.at_most is not None else value >= limit

    def in_words(self, is_quick: bool = False) -> str:
        """The bound for people."""
        limit = self.limit(is_quick)
        side = "most" if self.at_most is not None else "least"
        return "" if limit is None else f"at {side} {limit:g} {self.unit}".rstrip()

    def reaches_aim(self, value: float) -> bool:
        """Whether a median is where we would like it to be.

        >>> Bound("round", at_least=1.1, aim=1.5).reaches_aim(1.2)
        False
        """
        if self.aim is None:
            return True
        return value <= self.aim if self.at_most is not None else value >= self.aim


@dataclass(frozen=True)
class Benchmark:
    """A function that measures, and the bounds of what it measures."""

    measure: Callable[[bool], Samples]
    """Given whether the run is a quick one."""
    bounds: tuple[Bound, ...]

    @property
    def name(self) -> str:
        """That of its module and function."""
        return f"{self.measure.__module__}.{self.measure.__name__}"

    @property
    def is_quick(self) -> bool:
        """Whether the quick run has it."""
        return any(bound.quick is not None for bound in self.bounds)


benchmarks: list[Benchmark] = []
"""All that have been imported."""


def benchmark(*bounds: Bound) -> Callable[[Callable[[bool], Samples]], Callable[[bool], Samples]]:
    """Register a function that measures."""

    def register(measure: Callable[[bool], Samples]) -> Callable[[bool], Samples]:
        benchmarks.append(Benchmark(measure, bounds))
        return measure

    return register


# ---- one against the other ----


def cpu_seconds(work: Work) -> float:
    """The CPU seconds that a call takes in this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def in_turns(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """What each contender takes, in turns; the first turn warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(repeats + 1):
        for name, run in contenders.items():
            taken = run()
            if number:
                seconds[name].append(taken)
    return seconds


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """One ratio for each turn.

    >>> ratios([2.0, 3.0], [1.0, 2.0])
    [2.0, 1.5]
    """
    return [first / second for first, second in zip(above, below, strict=True)]


def spread(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the quartiles around it.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    (3.0, 2.0, 4.0)
    """
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, low, high


# ---- processes of their own ----


class Contender:
    """A process with one thread that does the same work again and again: what it does to memory is its own affair."""

    def __init__(self, prepare: Callable[[], Work]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(other_end, prepare), daemon=True)
        self._process.start()
        other_end.close()

    def seconds(self) -> float:
        """The CPU seconds of doing it once more."""
        self._connection.send(True)
        try:
            return float(self._connection.recv())
        except EOFError:
            raise SystemExit("a process of the benchmark has died") from None

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, prepare: Callable[[], Work]) -> None:
    torch.set_num_threads(1)
    work = prepare()
    while connection.recv():
        connection.send(cpu_seconds(work))


@contextmanager
def in_processes(prepares: Mapping[str, Callable[[], Work]]) -> Iterator[dict[str, Callable[[], float]]]:
    """Each piece of work in a process of its own, ready to be measured."""
    with ExitStack() as stack:
        contenders = {name: Contender(prepare) for name, prepare in prepares.items()}
        for contender in contenders.values():
            stack.callback(contender.stop)
        yield {name: contender.seconds for name, contender in contenders.items()}
