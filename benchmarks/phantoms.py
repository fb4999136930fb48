"""Are the synthetic hospitals neither trivial nor hopeless? Both conditions, from cells that are kept in results/.

At shift 1, `centralized` must exceed FedAvg by at least 3 points: the sites really look different. At shift 0, where
they look alike, every other method must be within 1.5 points of FedAvg. Three seeds each, preset `small`.

    python benchmarks/phantoms.py            run what is missing, then write benchmarks/results/phantoms.md
    python benchmarks/phantoms.py --report   only write the page
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from harmofl.displays import open_display
from harmofl.experiments.cells import read_experiment
from harmofl.experiments.kept import Kept
from harmofl.experiments.results import Results, gather
from harmofl.experiments.runner import run_experiment

ROOT = Path(__file__).parent.parent
KEPT, PAGE = ROOT / "results", ROOT / "benchmarks" / "results" / "phantoms.md"
PLANS = {task: ROOT / "experiments" / f"phantoms-{task}.toml" for task in ("histology", "nuclei", "prostate")}
DIFFERENT, ALIKE = "shift 1", "shift 0"
LEAST_GAIN, LARGEST_GAP = 3.0, 1.5


@dataclass(frozen=True)
class Scores:
    """A method's averages over sites, in percent, by seed."""

    values: dict[int, float]
    num_seeds: int

    @classmethod
    def of_line(cls, results: Results, row: str, variation: str) -> Scores:
        """The scores of a line of the table."""
        cells = [cell for cell in results.experiment.cells if (cell.row, cell.variation) == (row, variation)]
        values = {cell.seed: results.runs[cell.path].average for cell in cells if cell.path in results.runs}
        return cls(values, len(cells))

    def minus(self, other: Scores) -> tuple[str, float | None]:
        """The mean difference over common seeds in words, and as a number once all seeds are there."""
        common = self.values.keys() & other.values.keys()
        if not common:
            return "–", None
        gap = statistics.fmean(self.values[seed] - other.values[seed] for seed in common)
        return (f"{gap:+.2f}", gap) if len(common) == self.num_seeds else (f"so far {gap:+.2f}", None)

    def __str__(self) -> str:
        if not self.values:
            return "missing"
        mean = statistics.fmean(self.values.values())
        if len(self.values) < self.num_seeds:
            return f"{mean:.2f} ({len(self.values)} of {self.num_seeds} seeds)"
        return f"{mean:.2f} ({statistics.stdev(self.values.values()):.2f})"


def run_missing(jobs: int | None) -> None:
    """Train the cells that are not kept yet."""
    for plan in PLANS.values():
        with TemporaryDirectory() as folder, open_display() as watch:
            run_experiment(plan, Path(folder) / "runs", jobs=jobs, kept=KEPT, watch=watch)


def write_page(kept: Path) -> str:
    """The page, from what is kept in a folder: a table for each condition."""
    store = Kept(kept)
    each = {task: gather(read_experiment(plan), kept=store) for task, plan in PLANS.items()}
    num_missing = sum(len(results.missing) for results in each.values())
    num_cells = sum(len(results.experiment.cells) for results in each.values())
    lines = [
        "# Are the synthetic hospitals neither trivial nor hopeless?",
        "",
        "Written by `python benchmarks/phantoms.py` from what is kept in `results/`: preset `small`, seeds 0, 1, 2;",
        "mean over sites of the test score of the selected round, in percent (std over seeds in brackets).",
        "",
        f"## The hospitals look different (shift 1): `centralized` must exceed FedAvg by {LEAST_GAIN:g} points",
        "",
        "| task | centralized | FedAvg | difference | holds |",
        "|---|---|---|---|---|",
        *(line for task, results in each.items() for line in different_lines(task, results)),
        "",
        f"## The hospitals look alike (shift 0): every method must be within {LARGEST_GAP:g} points of FedAvg",
        "",
        "| task | method | score | difference to FedAvg | holds |",
        "|---|---|---|---|---|",
        *(line for task, results in each.items() for line in alike_lines(task, results)),
        *(["", f"{num_missing} of {num_cells} cells are still missing."] if num_missing else []),
    ]
    return "\n".join(lines) + "\n"


def different_lines(task: str, results: Results) -> Iterator[str]:
    """Whether `centralized` is ahead where the hospitals look different."""
    centralized, fedavg = (Scores.of_line(results, row, DIFFERENT) for row in ("centralized", "FedAvg"))
    words, gain = centralized.minus(fedavg)
    yield f"| {task} | {centralized} | {fedavg} | {words} | {verdict(gain, gain is not None and gain >= LEAST_GAIN)} |"


def alike_lines(task: str, results: Results) -> Iterator[str]:
    """Whether each method is close to FedAvg where the hospitals look alike."""
    fedavg = Scores.of_line(results, "FedAvg", ALIKE)
    rows = dict.fromkeys(cell.row for cell in results.experiment.in_table_order if cell.variation == ALIKE)
    for row in rows:
        scores = Scores.of_line(results, row, ALIKE)
        words, gap = scores.minus(fedavg) if row != "FedAvg" else ("–", None)
        holds = verdict(gap, gap is not None and abs(gap) <= LARGEST_GAP)
        yield f"| {task} | {row} | {scores} | {words} | {holds} |"


def verdict(difference: float | None, holds: bool) -> str:
    """The last column: nothing unless all seeds are there."""
    return "–" if difference is None else "yes" if holds else "**no**"


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--jobs", type=int, help="cells side by side (default one per core)")
    arguments = parser.parse_args()
    if not arguments.report:
        run_missing(arguments.jobs)
    PAGE.write_text(write_page(KEPT), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
