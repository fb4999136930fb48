"""What the notes below an experiment's table say of its settings: of all lines, of a variation, of a row, of a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harmofl.experiments.cells import Cell, Experiment
from harmofl.settings import flatten, resolve

NOT_SHOWN = ("task", "preset", "seed", "data.folder", "data.hold_out_site")
"""Settings that the caption already shows."""

TRAINING = ("rounds", "local_epochs", "batch_size", "optimizer", "learning_rate", "learning_rate_schedule")
"""Settings of training that every table names."""

NEUTRAL: dict[str, object] = {"reuse": 1, "ascent_fraction": 1.0}
"""Settings of a method that are not named where they change nothing."""

Changes = set[tuple[str, str]]
"""Settings that differ from the defaults, with their values."""


def training_note(experiment: Experiment) -> str:
    """The hyperparameters that all cells share, in one line."""
    each = [flatten(cell.settings.model_dump(mode="json")) for cell in experiment.cells]
    shared = [
        f"{name.replace('_', ' ')} {each[0][f'training.{name}']}"
        for name in TRAINING
        if all(values[f"training.{name}"] == each[0][f"training.{name}"] for values in each)
    ]
    images = Path(experiment.data).name if experiment.data else "synthetic hospitals"
    return f"Images: {images}. Preset {experiment.preset}: {', '.join(shared)}."


def method_notes(experiment: Experiment) -> list[str]:
    """The hyperparameters of each row's method, row by row."""
    own = {row.name: _of_method(experiment, row.name) for row in experiment.plan.rows}
    return [_note(f"“{row}”", values.items()) for row, values in own.items() if values]


def _of_method(experiment: Experiment, row: str) -> dict[str, str]:
    """The method settings that all cells of a row share."""
    each = [cell.settings.method for cell in experiment.cells if cell.row == row]
    shared = each[0] if each else {}
    return {
        name: str(value)
        for name, value in shared.items()
        if name != "name" and value not in (None, NEUTRAL.get(name)) and all(method[name] == value for method in each)
    }


def settings_notes(experiment: Experiment) -> list[str]:
    """Which other settings differ from the defaults: for all lines, for a variation's, for a row's, line by line."""
    cells = {cell.label: cell for cell in experiment.in_table_order}
    left = {label: _changes(cell, experiment) for label, cell in cells.items()}
    groups = {"Not as by default, for all": list(cells)}
    groups |= _groups("Variation “{}”", {label: cell.variation for label, cell in cells.items()})
    groups |= _groups("“{}”", {label: cell.row for label, cell in cells.items()})
    notes = []
    for name, labels in groups.items():
        shared = set.intersection(*(left[label] for label in labels))
        left |= {label: left[label] - shared for label in labels}
        notes.append(_note(name, sorted(shared)))
    return [note for note in [*notes, *(_note(f"“{label}”", sorted(own)) for label, own in left.items())] if note]


def _groups(title: str, names: dict[str, str]) -> dict[str, list[str]]:
    """The labels of two or more lines that have the same name, under a title."""
    groups: dict[str, list[str]] = {}
    for label, name in names.items():
        groups.setdefault(title.format(name), []).append(label)
    return {name: labels for name, labels in groups.items() if len(labels) > 1}


def _changes(cell: Cell, experiment: Experiment) -> Changes:
    folder = {"data.folder": experiment.data} if experiment.data else {}
    method = cell.settings.method["name"]
    default, _ = resolve(cell.settings.task, method, experiment.preset, overrides=folder)
    usual, values = (flatten(settings.model_dump(mode="json")) for settings in (default, cell.settings))
    unset = [name for name, value in cell.settings.method.items() if value is None]  # its alternative is shown
    shown_elsewhere = (*NOT_SHOWN, *(f"method.{name}" for name in (*_of_method(experiment, cell.row), *unset)))
    return {
        (name, str(value)) for name, value in values.items() if name not in shown_elsewhere and usual.get(name) != value
    }


def _note(title: str, values: Iterable[tuple[str, str]]) -> str:
    """A line of settings, or nothing if there are none."""
    assignments = ", ".join(f"{name} = {value}" for name, value in values)
    return f"{title}: {assignments}." if assignments else ""
