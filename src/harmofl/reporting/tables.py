"""Score tables, from the folders of finished runs: `to_markdown(score_table(runs))`, or another of table_formats.py."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harmofl.errors import UsageError
from harmofl.runs.finished import FinishedRun
from harmofl.settings import DataSettings
from harmofl.tasks.scores import Score

REFERENCES = ("local", "centralized")
"""Runs that help to read a table but do not compete in it: nothing, or everything, travels."""

MISSING = "–"


@dataclass(frozen=True)
class MethodScores:
    """The runs of one method, one per seed, under the name the tables and figures give it."""

    label: str
    runs: tuple[FinishedRun, ...]

    @property
    def score(self) -> Score:
        """What its scores are."""
        return self.runs[0].score

    @property
    def is_reference(self) -> bool:
        """Whether this is a reference for reading the table, not a method in competition."""
        return self.runs[0].method in REFERENCES

    @property
    def averages(self) -> dict[int, float]:
        """The average over sites of each seed, in the score's unit."""
        return {run.seed: run.average for run in self.runs}

    @property
    def average(self) -> float:
        """The average over sites and seeds, in the score's unit."""
        return statistics.fmean(self.averages.values())

    def at(self, site: str) -> list[float]:
        """The site's score of each seed, in the score's unit."""
        return [run.scores.get(site, math.nan) for run in self.runs]

    def mean_at(self, site: str) -> float:
        """The site's mean score over seeds, in the score's unit."""
        return statistics.fmean(self.at(site))


def methods_of(runs: Sequence[FinishedRun]) -> list[MethodScores]:
    """Gather the seeds of each method, in the order in which methods first appear."""
    _check_comparable(runs)
    norms_differ = len({run.norm for run in runs}) > 1
    sites = set(sites_of(runs))
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        label = f"{run.title} ({run.norm} norm)" if norms_differ and run.norm else run.title
        groups.setdefault(label, []).append(run if sites <= run.scores.keys() else _without_average(run))
    for label, members in groups.items():
        _check_seeds_differ(label, members)
    return [MethodScores(label, tuple(members)) for label, members in groups.items()]


def _without_average(run: FinishedRun) -> FinishedRun:
    """A run that lacks a site: an average over fewer sites than its neighbours' would not be comparable with theirs."""
    return replace(run, summary={**run.summary, "test": {**run.summary["test"], "average": None}})


def _check_comparable(runs: Sequence[FinishedRun]) -> None:
    if not runs:
        raise UsageError("no runs given: a table or figure needs at least one")
    for name in ("task", "metric_name"):
        values = sorted({str(run.summary[name]) for run in runs})
        if len(values) > 1:
            raise UsageError(f"runs with different {name} do not belong in one table: {', '.join(values)}")
    usual = DataSettings().model_dump(mode="json")  # for what a run's file does not name
    data = [usual | run.settings["data"] for run in runs if "data" in run.settings]
    for name in dict.fromkeys(name for settings in data for name in settings):
        values = sorted({str(settings.get(name)) for settings in data})
        if len(values) > 1:
            raise UsageError(f"runs with different data.{name} do not belong in one table: {', '.join(values)}")
    known = [run.facts for run in runs if run.facts]
    for other in known[1:]:
        if what := known[0].difference(other):
            raise UsageError(f"runs with different {what} do not belong in one table")


def _check_seeds_differ(label: str, runs: Sequence[FinishedRun]) -> None:
    first_with: dict[int, FinishedRun] = {}
    for run in runs:
        other = first_with.setdefault(run.seed, run)
        if other is not run:
            raise UsageError(
                f"{label} ran twice with seed {run.seed}: {other.folder} and {run.folder}. "
                'Give variations their own "title", or report them apart'
            )


def sites_of(runs: Iterable[FinishedRun]) -> list[str]:
    """List every site that has a test score, in the order of first appearance."""
    return list(dict.fromkeys(site for run in runs for site in run.scores))


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation, or None where it is not defined."""
    if len(values) < 2 or any(math.isnan(value) for value in values):  # stdev fails on nan
        return None
    return statistics.stdev(values)


@dataclass(frozen=True)
class Cell:
    """One number of a table, with its spread if it has one."""

    mean: float
    spread: float | None = None
    best: bool = False
    digits: int = 2

    @property
    def mean_text(self) -> str:
        """The number as shown."""
        return MISSING if math.isnan(self.mean) else f"{self.mean:.{self.digits}f}"

    @property
    def spread_text(self) -> str:
        """The spread as shown, without brackets."""
        return "" if self.spread is None or math.isnan(self.spread) else f"{self.spread:.{self.digits}f}"

    @property
    def text(self) -> str:
        """The number and, in brackets, its spread."""
        return f"{self.mean_text} ({self.spread_text})" if self.spread_text else self.mean_text


@dataclass(frozen=True)
class Column:
    """A column: its name, and what the brackets in it hold."""

    name: str
    spread: str = ""
    competes: bool = True
    explains_itself: bool = True

    @property
    def heading(self) -> str:
        """The name, with the meaning of the brackets unless a note under the table gives it."""
        return f"{self.name} ({self.spread})" if self.spread and self.explains_itself else self.name


@dataclass(frozen=True)
class Row:
    """One method's cells."""

    title: str
    cells: tuple[Cell, ...]
    num_seeds: int = 1


@dataclass(frozen=True)
class Table:
    """A table before it takes any format."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    warning: str = ""
    """What a reader must know before the numbers."""

    @property
    def heading(self) -> str:
        """The caption and the warning."""
        return f"{self.caption.removesuffix('.')}. {self.warning}" if self.warning else self.caption


def score_table(runs: Sequence[FinishedRun]) -> Table:
    """Build the table of scores in their unit: a row per method, a column per site, then the average."""
    methods, sites = methods_of(runs), sites_of(runs)
    several_seeds = any(len(method.runs) > 1 for method in methods)
    columns = _columns(sites, several_seeds)
    rows = [_row(method, sites, several_seeds) for method in methods]
    competing = [not method.is_reference for method in methods]
    return Table(
        caption=f"{runs[0].scored_on.capitalize()} {runs[0].score.words_with_unit}, {runs[0].task}",
        columns=columns,
        rows=_mark_best(rows, columns, competing, runs[0].score),
        notes=_notes(runs, methods, several_seeds),
        warning=_warn_of_short_training(methods),
    )


def _warn_of_short_training(methods: Sequence[MethodScores]) -> str:
    """Say so if every method selected its last round, and a later one might have been better still."""
    competing = [method for method in methods if not method.is_reference]
    if not competing or not all(run.selected_last_round for method in competing for run in method.runs):
        return ""
    who = "Every method" if len(competing) > 1 else competing[0].label
    return f"{who} selected its last round: training was too short for a selection, and more rounds may score better."


def _columns(sites: Sequence[str], several_seeds: bool) -> tuple[Column, ...]:
    site_spread = "std over seeds" if several_seeds else ""
    columns = [Column(site, site_spread, explains_itself=False) for site in sites]
    columns.append(Column("Average", "std over sites"))
    if several_seeds:
        columns.append(Column("Average's std over seeds", competes=False))
    return tuple(columns)


def _row(method: MethodScores, sites: Sequence[str], several_seeds: bool) -> Row:
    cells = [Cell(method.mean_at(site), sample_std(method.at(site))) for site in sites]
    # The spread over sites is that of the row's own site columns, those the method was scored on.
    site_means = [cell.mean for cell in cells if not math.isnan(cell.mean)]
    cells.append(Cell(method.average, None if math.isnan(method.average) else sample_std(site_means)))
    if several_seeds:
        over_seeds = sample_std(list(method.averages.values()))
        cells.append(Cell(math.nan if over_seeds is None else over_seeds))
    return Row(method.label, tuple(cells), num_seeds=len(method.runs))


def _mark_best(
    rows: Sequence[Row], columns: Sequence[Column], competing: Sequence[bool], score: Score
) -> tuple[Row, ...]:
    """Mark the best number of each column; what reads the same is equally best."""
    if sum(competing) < 2:
        return tuple(rows)
    best_texts = []
    for index, column in enumerate(columns):
        cells = [row.cells[index] for row, competes in zip(rows, competing, strict=True) if competes]
        scored = [cell for cell in cells if not math.isnan(cell.mean)]
        best = max(scored, key=lambda cell: score.rank(cell.mean), default=None)
        best_texts.append(best.mean_text if best and column.competes else None)

    def mark_cells(row: Row) -> Row:
        pairs = zip(row.cells, best_texts, strict=True)
        cells = tuple(replace(cell, best=cell.mean_text == text) for cell, text in pairs)
        return replace(row, cells=cells)

    return tuple(mark_cells(row) if competes else row for row, competes in zip(rows, competing, strict=True))


def _notes(runs: Sequence[FinishedRun], methods: Sequence[MethodScores], several: bool) -> tuple[str, ...]:
    notes = []
    if several:
        notes.append(f"Site columns: mean (sample std over seeds); {_seed_counts(methods)}.")
        notes.append("Average: mean over sites and seeds (sample std over sites), then its std over seeds.")
    else:
        notes.append("Average: mean over sites (sample std over sites).")
    if sum(not method.is_reference for method in methods) > 1:
        notes.append("Bold: best of the column.")
    references = [method.label for method in methods if method.is_reference]
    if references:
        notes.append(f"For reference, not in competition: {', '.join(references)}.")
    lacking = _lacking(methods, sites_of(runs))
    if lacking:
        notes.append(f"No average where a site has no score: {'; '.join(lacking)}.")
    norms = {run.norm for run in runs if run.norm}
    if len(norms) == 1:
        notes.append(f"Normalization layers: {norms.pop()}.")
    return tuple(notes)


def _lacking(methods: Sequence[MethodScores], sites: Sequence[str]) -> list[str]:
    """Which runs have no score at which sites."""
    lacks = {
        f"{method.label}, seed {run.seed}": [site for site in sites if site not in run.scores]
        for method in methods
        for run in method.runs
    }
    return [f"{run} ({', '.join(own)})" for run, own in lacks.items() if own]


def _seed_counts(methods: Sequence[MethodScores]) -> str:
    """How many seeds most lines have, and which have another number."""
    counts = Counter(len(method.runs) for method in methods)
    usual = max(counts, key=lambda count: (counts[count], count))
    others = (
        f"{count} of {' · '.join(method.label for method in methods if len(method.runs) == count)}"
        for count in sorted(set(counts) - {usual})
    )
    return "; ".join([f"{usual} seeds" if usual > 1 else "1 seed", *others])
