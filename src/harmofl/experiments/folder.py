"""An experiment's folder, which belongs to one experiment and to one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harmofl.errors import UsageError
from harmofl.experiments.cells import Experiment
from harmofl.experiments.kept import agree
from harmofl.experiments.state import is_experiment, read_state
from harmofl.files import claim, remove_parts
from harmofl.runs.finished import read_facts, read_settings


@contextmanager
def hold_folder(out: Path, experiment: Experiment, resume: bool) -> Iterator[None]:
    """Hold the folder for a new experiment, or to continue the same one."""
    check = _check_same if resume else _check_unused
    check(out, experiment)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = claim(out / ".lock", f"{out} is in use by another process")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror or error}") from None
    try:
        check(out, experiment)  # again, as another process may have been here between
        remove_parts(out)
        yield
    finally:
        os.close(lock)


def _check_unused(out: Path, experiment: Experiment) -> None:
    """Raise an error if the folder holds anything but hidden files: a kill before the start leaves a lock."""
    if out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
        held = "already holds an experiment: add --resume to continue it, or"
        raise UsageError(f"{out} {held if is_experiment(out) else 'is not empty:'} choose another --out")


def _check_same(out: Path, experiment: Experiment) -> None:
    """Raise an error if the folder holds another experiment; rows, variations and seeds may have been added since."""
    if not is_experiment(out):
        raise UsageError(f"{out} holds no experiment to resume: leave out --resume to start one")
    before = read_state(out)
    fields = {
        "title": (before.title, experiment.plan.title),
        "task": (before.task, experiment.plan.task),
        "preset": (before.preset, experiment.preset),
        "data": (before.data, experiment.data),
    }
    changed = [f"{name} = {was!r}, not {now!r}" for name, (was, now) in fields.items() if was != now]
    for cell in experiment.cells:
        was_started = (out / cell.path / "config.toml").exists()
        place = out / cell.path
        if was_started and not agree(cell, read_settings(place), read_facts(place)):
            changed.append(f"{cell.path} was run with other settings")
    if changed:
        raise UsageError(f"{out} holds another experiment ({'; '.join(changed)}): choose another --out")
