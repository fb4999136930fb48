"""An experiment's results as files: results.json, and the table in Markdown, CSV and LaTeX."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harmofl.experiments.notes import method_notes, settings_notes, training_note
from harmofl.experiments.plan import Paper
from harmofl.experiments.results import Results
from harmofl.experiments.state import RESULTS
from harmofl.files import write_whole
from harmofl.reporting import comparisons
from harmofl.reporting.table_formats import latex_escape, to_csv, to_latex, to_markdown
from harmofl.reporting.tables import Cell as Number
from harmofl.reporting.tables import Column, Row, Table, score_table
from harmofl.runs.finished import FinishedRun


def write_results(results: Results, out: Path) -> None:
    """Write all results so far; tables only once a cell is finished."""
    write_whole(out / RESULTS, json.dumps(results.to_json(out), indent=2) + "\n")
    if results.runs:
        table = results_table(results)
        write_whole(out / "table.md", _markdown(results, table))
        write_whole(out / "table.csv", to_csv(table))
        write_whole(out / "table.tex", _latex(results, table))


def results_table(results: Results) -> Table:
    """The table of scores, with the settings and the missing cells in its notes."""
    experiment = results.experiment
    runs = results.lines()
    table = score_table(runs)
    kind = "at the hospital that took no part" if experiment.plan.hold_out else "of the selected round"
    notes = [*table.notes, *unseen_notes(runs), training_note(experiment)]
    notes += [*method_notes(experiment), *settings_notes(experiment)]
    table = replace(
        table,
        caption=f"{experiment.plan.title}: {table.caption[0].lower()}{table.caption[1:]}, {kind}",
        notes=(*notes, *_missing_note(results)),
    )
    rows = {cell.label: cell.row for cell in experiment.cells}
    return add_paper_averages(table, experiment.plan.paper, rows) if experiment.plan.paper else table


def unseen_notes(runs: Sequence[FinishedRun]) -> list[str]:
    """How methods were scored at an unseen hospital, where they needed more than the model."""
    notes: dict[str, list[str]] = {}
    for run in runs:
        for scores in (run.summary.get("unseen") or {}).values():
            notes.setdefault(scores.get("note", ""), []).append(run.title)
    return [f"“{'”, “'.join(dict.fromkeys(labels))}”: {note}." for note, labels in notes.items() if note]


def _missing_note(results: Results) -> list[str]:
    if not results.missing:
        return []
    errors = results.errors
    named = [f"{cell} ({errors[cell.path]})" if cell.path in errors else str(cell) for cell in results.missing]
    return [f"Missing, {len(named)} of {len(results.experiment.cells)} cells: {'; '.join(named)}."]


def add_paper_averages(table: Table, paper: Paper, rows_of: Mapping[str, str]) -> Table:
    """Add a column with the averages that the paper printed. `rows_of`: the plan's row of each line, by its title."""
    column = Column("Paper's average", "std over sites", competes=False, explains_itself=False)
    averages = {row.title: row.cells[-1] for row in paper_table(paper).rows}
    printed = (averages.get(rows_of[row.title], Number(math.nan)) for row in table.rows)
    rows = [replace(row, cells=(*row.cells, average)) for row, average in zip(table.rows, printed, strict=True)]
    note = f"Paper's average (std over sites): as published, {paper.source}; not from our runs."
    return replace(table, columns=(*table.columns, column), rows=tuple(rows), notes=(*table.notes, note))


def paper_table(paper: Paper) -> Table:
    """The paper's own table."""
    rows = [Row(name, tuple(_number(score, paper.digits) for score in scores)) for name, scores in paper.scores.items()]
    caption = f"As published, not our runs: {paper.source}, in percent"
    return Table(caption, tuple(Column(name) for name in paper.columns), tuple(rows))


def _number(score: Any, digits: int) -> Number:
    mean, spread = score if isinstance(score, list) else (score, None)
    return Number(mean, spread, digits=digits)


def sentences(results: Results) -> list[str]:
    """Whether each difference is more than noise, in words."""
    found = [comparison.sentence for comparison in results.comparisons()]
    return [*found, comparisons.NOTE] if found else []


def _markdown(results: Results, table: Table) -> str:
    paper = results.experiment.plan.paper
    compared = comparisons.to_markdown(results.comparisons())
    parts = [to_markdown(table), compared, to_markdown(paper_table(paper)) if paper else ""]
    return "\n".join(part for part in parts if part)


def _latex(results: Results, table: Table) -> str:
    paper = results.experiment.plan.paper
    compared = "".join(f"{latex_escape(sentence)}\n\n" for sentence in sentences(results))
    parts = [to_latex(table), compared, to_latex(paper_table(paper)) if paper else ""]
    return "\n".join(part for part in parts if part)
