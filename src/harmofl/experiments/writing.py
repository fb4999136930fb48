"""An experiment's results as files: results.json, and the table in Markdown, CSV and LaTeX."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harmofl.experiments.cells import Cell, Experiment
from harmofl.experiments.plan import Paper
from harmofl.experiments.results import Results
from harmofl.experiments.state import RESULTS
from harmofl.files import write_whole
from harmofl.reporting import comparisons
from harmofl.reporting.table_formats import latex_escape, to_csv, to_latex, to_markdown
from harmofl.reporting.tables import Cell as Number
from harmofl.reporting.tables import Column, Row, Table, score_table
from harmofl.runs.finished import FinishedRun
from harmofl.settings import flatten, resolve

NOT_SHOWN = ("task", "preset", "seed", "data.folder", "data.hold_out_site")
"""Settings that the caption already shows."""


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
    notes += [*_method_notes(experiment), *_settings_notes(experiment)]
    table = replace(
        table,
        caption=f"{experiment.plan.title}: {table.caption[0].lower()}{table.caption[1:]}, {kind}",
        notes=(*notes, *_missing_note(results)),
    )
    return add_paper_averages(table, experiment.plan.paper) if experiment.plan.paper else table


def training_note(experiment: Experiment) -> str:
    """The hyperparameters that all cells share, in one line."""
    each = [flatten(cell.settings.model_dump(mode="json")) for cell in experiment.cells]
    names = ("rounds", "local_epochs", "batch_size", "optimizer", "learning_rate")
    shared = [
        f"{name.replace('_', ' ')} {each[0][f'training.{name}']}"
        for name in names
        if all(values[f"training.{name}"] == each[0][f"training.{name}"] for values in each)
    ]
    images = Path(experiment.data).name if experiment.data else "synthetic hospitals"
    return f"Images: {images}. Preset {experiment.preset}: {', '.join(shared)}."


def _method_notes(experiment: Experiment) -> list[str]:
    """The hyperparameters of each row's method, row by row."""
    own = {row.name: _of_method(experiment, row.name) for row in experiment.plan.rows}
    return [f"“{row}”: {_assignments(values)}." for row, values in own.items() if values]


def _of_method(experiment: Experiment, row: str) -> dict[str, str]:
    """The method settings that all cells of a row share."""
    each = [cell.settings.method for cell in experiment.cells if cell.row == row]
    shared = each[0] if each else {}
    return {
        name: str(value)
        for name, value in shared.items()
        if name != "name" and all(method[name] == value for method in each)
    }


def _settings_notes(experiment: Experiment) -> list[str]:
    """Which other settings differ from the defaults: first for all lines, then line by line."""
    changes = {cell.label: _changes(cell, experiment) for cell in experiment.in_table_order}
    common = set.intersection(*(set(own.items()) for own in changes.values()))
    notes = [f"Not as by default, for all: {_assignments(dict(sorted(common)))}."] if common else []
    for label, own in changes.items():
        special = {name: value for name, value in own.items() if (name, value) not in common}
        if special:
            notes.append(f"“{label}”: {_assignments(special)}.")
    return notes


def _changes(cell: Cell, experiment: Experiment) -> dict[str, str]:
    folder = {"data.folder": experiment.data} if experiment.data else {}
    method = cell.settings.method["name"]
    default, _ = resolve(cell.settings.task, method, experiment.preset, overrides=folder)
    usual, values = (flatten(settings.model_dump(mode="json")) for settings in (default, cell.settings))
    shown_elsewhere = (*NOT_SHOWN, *(f"method.{name}" for name in _of_method(experiment, cell.row)))
    return {
        name: str(value) for name, value in values.items() if name not in shown_elsewhere and usual.get(name) != value
    }


def _assignments(values: dict[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


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


def add_paper_averages(table: Table, paper: Paper) -> Table:
    """Add a column with the averages that the paper printed."""
    column = Column("Paper's average", "std over sites", competes=False, explains_itself=False)
    averages = {row.title: row.cells[-1] for row in paper_table(paper).rows}
    rows = [replace(row, cells=(*row.cells, averages.get(row.title, Number(math.nan)))) for row in table.rows]
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
