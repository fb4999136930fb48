"""Results that are kept apart from the runs: small, without any path of this machine, and enough for every table.

Each experiment has a file, one cell a line. A cell whose configuration has a kept result counts as done, whichever file
that result stands in: a grid can be filled over several days, and experiments share the cells that they have in common.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from harmofl import registry
from harmofl.data.cache import digest
from harmofl.errors import UsageError
from harmofl.experiments.cells import Cell, Experiment
from harmofl.experiments.json_lines import lock_json_lines, read_json_lines
from harmofl.experiments.kept_rounds import from_rounds, to_rounds
from harmofl.runs.finished import FinishedRun, read_run, read_settings, validate_settings
from harmofl.settings import Settings, Tree, differences, flatten, merge, nest
from harmofl.settings.schema import FOUND_IN_DATA, FREE_TO_CHANGE

END = ".jsonl"
PATHS = ("data.folder", "data.cache", "model.initial")


@dataclass(frozen=True)
class KeptCell:
    """A finished cell as it is kept: one line of a file."""

    place: Path
    """The file, and the cell's name in it: `results/table-nuclei.jsonl/fedavg/seed-0`."""
    tree: Tree
    """The settings that change results, and the facts about the images."""
    settings: Settings
    """The same, validated; settings that the method has gained since have their defaults."""
    summary: Mapping[str, Any]
    rounds: Mapping[str, Any]

    @classmethod
    def from_line(cls, file: Path, line: Mapping[str, Any]) -> KeptCell:
        """Read a line of a file."""
        try:
            place = file / line["cell"]
            facts = line["data"]
            known = {} if facts["synthetic"] else {name: facts[name] for name in FOUND_IN_DATA if name in facts}
            tree = merge(line["settings"], {"data": known})
            return cls(place, tree, validate_settings(tree, place), line["summary"], line["rounds"])
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{file} holds a line that no experiment has written: {error!r}") from None

    def run(self) -> FinishedRun:
        """The cell in the form of a finished run."""
        return FinishedRun(self.place, self.summary, list(from_rounds(self.rounds)), tomli_w.dumps(self.tree))


class Kept:
    """A folder of kept results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cells = [cell for file in sorted(folder.glob(f"*{END}")) for cell in read_kept_cells(file)]

    def find(self, experiment: Experiment, cell: Cell) -> KeptCell | None:
        """Find the result of a run with the cell's settings; the cell's own comes first.

        If the settings leave open which images are meant, results of different images are an error.
        """
        own, data = self._file(experiment) / cell.path, cell.settings.data
        agreeing = [kept for kept in self._cells if agree(cell.settings, kept.settings, paths=False)]
        agreeing.sort(key=lambda kept: kept.place != own)
        if data.folder and not data.fingerprints and differ_in_images(kept.tree for kept in agreeing):
            named = ", ".join(str(kept.place) for kept in agreeing)
            raise UsageError(f"{cell}: kept results of different images: {named}; remove those that are outdated")
        return agreeing[0] if agreeing else None

    def keep(self, experiment: Experiment, cell: Cell, run: Path) -> KeptCell:
        """Append a finished run's settings, summary and rounds, unless they are there already."""
        file = self._file(experiment)
        settings = drop_paths(read_settings(run))
        with lock_json_lines(file) as locked:
            there = [KeptCell.from_line(file, line) for line in locked.lines]
            kept = next((kept for kept in there if not differences(kept.settings, settings)), None)
            if kept is None:
                taken = any(kept.place == file / cell.path for kept in there)  # by another preset, or other images
                name = f"{cell.path}-{digest(settings.to_toml())[:8]}" if taken else cell.path
                locked.append(to_line(name, cell, settings, read_run(run)))
                kept = KeptCell.from_line(file, locked.lines[-1])
        self._cells.append(kept)
        return kept

    def _file(self, experiment: Experiment) -> Path:
        return self.folder / f"{experiment.name}{END}"


def to_line(name: str, cell: Cell, settings: Settings, run: FinishedRun) -> dict[str, Any]:
    """What is kept of a cell: what was found in its images stands apart from what was chosen."""
    facts = _facts_of(settings)
    free = {*FREE_TO_CHANGE, *([] if facts["synthetic"] else [f"data.{name}" for name in facts])}
    values = flatten(tomllib.loads(settings.to_toml()))
    chosen = {setting: value for setting, value in values.items() if setting not in free}
    return {
        "cell": name,
        "label": cell.label,
        "seed": cell.seed,
        "settings": nest(chosen),
        "data": facts,
        "summary": dict(run.summary),
        "rounds": to_rounds(run.records),
    }


def _facts_of(settings: Settings) -> dict[str, Any]:
    """What was found in the images, or is known of a phantom's."""
    data, task = settings.data, registry.tasks.find(settings.task)
    if data.is_synthetic:
        sites, classes = list(task.sites_of(data)), list(task.classes_of(data))
        return {"synthetic": True, "sites": sites, "channels": task.channels, "classes": classes}
    found = {name: getattr(data, name) for name in FOUND_IN_DATA}
    return {"synthetic": False} | {name: value for name, value in found.items() if value is not None}


def read_kept_cells(file: Path) -> list[KeptCell]:
    """Read all cells of a file."""
    return [KeptCell.from_line(file, line) for line in read_json_lines(file)]


def read_kept(place: Path) -> FinishedRun:
    """Read a kept cell in the form of a finished run."""
    file = _file_of(place)
    for cell in read_kept_cells(file) if file else ():
        if cell.place == place:
            return cell.run()
    raise UsageError(f"{place}: there is no such kept cell")


def is_kept(place: Path) -> bool:
    """Whether a place is a line of a file of kept results, not a run's folder."""
    return _file_of(place) is not None


def _file_of(place: Path) -> Path | None:
    return next((parent for parent in place.parents if parent.suffix == END and not parent.is_dir()), None)


def drop_paths(settings: Settings) -> Settings:
    """The settings without paths of this machine; of the initial model's folder, the name remains."""
    initial = settings.model.initial
    elsewhere = settings.with_values("data", folder=None, cache=None)
    return elsewhere.with_values("model", initial=Path(initial).name if initial else None)


def agree(planned: Settings, done: Settings, paths: bool = True) -> bool:
    """Whether a finished run is the planned one; with `paths`, its images must lie in the same folder, too."""
    if (planned.seed, planned.task, planned.method) != (done.seed, done.task, done.method):  # seen at once, as most do
        return False
    if not paths:
        if bool(planned.data.folder) != bool(done.data.channels):  # known once a folder was read, never of a phantom
            return False
        changed = differences(drop_paths(planned), drop_paths(done))
    else:
        changed = differences(planned, done)
    if not planned.data.folder:
        return not changed
    values = flatten(planned.model_dump(mode="json"))
    return all(name.removeprefix("data.") in FOUND_IN_DATA and values[name] is None for name in changed)


def differ_in_images(each: Iterable[Tree]) -> bool:
    """Whether runs used different images, or different masks or labels."""
    facts = ([tree["data"].get(name) for name in ("fingerprints", "annotations")] for tree in each)
    return len(set(map(str, facts))) > 1
