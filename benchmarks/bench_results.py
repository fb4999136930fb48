"""What benchmarks have measured, in `benchmarks/results.json`, and the table of it in docs/performance.md."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from harmofl.devices import num_cores
from measuring import Bound, spread

MARK, END = "<!-- benchmarks -->", "<!-- end -->"


@dataclass(frozen=True)
class Result:
    """The samples of one number, and where they lie."""

    median: float
    low: float
    high: float
    """The quartiles."""
    samples: Sequence[float]
    bound: str
    machine: str

    @classmethod
    def of(cls, samples: Sequence[float], bound: Bound) -> Result:
        """What samples say."""
        return cls(*spread(samples), [round(sample, 4) for sample in samples], bound.in_words(), describe_machine())


@dataclass(frozen=True)
class Results:
    """Results by the names of what was measured."""

    values: dict[str, Result]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Those of a file; none if there is none."""
        values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return cls({name: Result(**value) for name, value in values.items()})

    def with_those_of(self, newer: Results) -> Results:
        """These, but for what has been measured anew."""
        return Results({**self.values, **newer.values})

    def write(self, path: Path) -> None:
        """Write them, in the order of names."""
        values = {name: asdict(self.values[name]) for name in sorted(self.values)}
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def describe_machine() -> str:
    """What the numbers may depend on."""
    return f"{platform.system()} {platform.machine()}, {num_cores()} cores, torch {torch.__version__}"


def table(values: Mapping[str, Result], bounds: Iterable[Bound]) -> str:
    """A row for each number that was measured, in the order in which benchmarks are registered."""
    lines = ["| what | measured | quartiles | bound |", "|---|---:|---|---|"]
    for bound in bounds:
        if bound.name in values:
            result = values[bound.name]
            holds = "" if bound.holds(result.median) else " (**broken**)"
            if not bound.reaches_aim(result.median):
                holds += f"; the aim of {bound.aim:g} is not reached"
            number, between = f"{result.median:.3g} {bound.unit}".rstrip(), f"{result.low:.3g} to {result.high:.3g}"
            lines.append(f"| {bound.name} | {number} | {between} | {bound.in_words() or '–'}{holds} |")
    return "\n".join(lines)


def write_table(page: Path, results: Results, bounds: Iterable[Bound]) -> None:
    """Replace what stands between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(MARK)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise SystemExit(f"{page}: {MARK} or {END} is missing")
    machines = sorted({result.machine for result in results.values.values()})
    about = f"Measured on: {'; '.join(machines)}."
    page.write_text(f"{before}{MARK}\n{table(results.values, bounds)}\n\n{about}\n{END}{after}", encoding="utf-8")
