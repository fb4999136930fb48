"""Results that are kept apart from the runs: small, without any path of this machine, and enough for every table.

Each experiment has a file, one cell a line. A cell whose configuration has a kept result counts as done, whichever file
that result stands in: a grid can be filled over several days, and experiments share the cells that they have in common.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from harmofl.data.cache import digest
from harmofl.data.facts import DataFacts
from harmofl.errors import UsageError
from harmofl.experiments.cells import Cell, Experiment
from harmofl.experiments.json_lines import lock_json_lines, read_json_lines
from harmofl.experiments.kept_rounds import from_rounds, to_rounds
from harmofl.runs.finished import FinishedRun, read_facts, read_run, read_settings, validate_settings
from harmofl.settings import Settings, Tree, differences, flatten, nest
from harmofl.settings.schema import FREE_TO_CHANGE

END = ".jsonl"
PATHS = ("data.folder", "data.cache", "model.initial")


@dataclass(frozen=True)
class KeptCell:
    """A finished cell as it is kept: one line of a file."""

    place: Path
    """The file, and the cell's name in it: `results/table-nuclei.jsonl/fedavg/seed-0`."""
    tree: Tree
    """The settings that change results."""
    settings: Settings
    """The same, validated; settings that the method has gained since have their defaults."""
    facts: DataFacts
    """What was found in the images."""
    summary: Mapping[str, Any]
    rounds: Mapping[str, Any]

    @classmethod
    def from_line(cls, file: Path, line: Mapping[str, Any]) -> KeptCell:
        """Read a line of a file."""
        try:
            place = file / line["cell"]
            tree, facts = line["settings"], DataFacts.from_json(line["data"])
            return cls(place, tree, validate_settings(tree, place), facts, line["summary"], line["rounds"])
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{file} holds a line that no experiment has written: {error!r}") from None

    def run(self) -> FinishedRun:
        """The cell in the form of a finished run."""
        records = list(from_rounds(self.rounds))
        return FinishedRun(self.place, self.summary, records, tomli_w.dumps(self.tree), self.facts)


class Kept:
    """A folder of kept results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cells = [cell for file in sorted(folder.glob(f"*{END}")) for cell in read_kept_cells(file)]

    def find(self, experiment: Experiment, cell: Cell) -> KeptCell | None:
        """Find the result of a run with the cell's settings; the cell's own comes first.

        If the settings leave open which images are meant, results of different images are an error.
        """
        own = self._file(experiment) / cell.path
        agreeing = [kept for kept in self._cells if agree(cell, kept.settings, kept.facts, paths=False)]
        agreeing.sort(key=lambda kept: kept.place != own)
        if cell.settings.data.folder and len({images_of(kept.facts) for kept in agreeing}) > 1:
            named = ", ".join(str(kept.place) for kept in agreeing)
            raise UsageError(f"{cell}: kept results of different images: {named}; remove those that are outdated")
        return agreeing[0] if agreeing else None

    def keep(self, experiment: Experiment, cell: Cell, run: Path) -> KeptCell:
        """Append a finished run's settings, summary and rounds, unless they are there already."""
        file = self._file(experiment)
        settings, facts = drop_paths(read_settings(run)), read_facts(run)
        with lock_json_lines(file) as locked:
            there = [KeptCell.from_line(file, line) for line in locked.lines]
            same = (kept for kept in there if images_of(kept.facts) == images_of(facts))
            kept = next((kept for kept in same if not differences(kept.settings, settings)), None)
            if kept is None:
                taken = any(kept.place == file / cell.path for kept in there)  # by another preset, or other images
                name = f"{cell.path}-{digest(settings.to_toml(), images_of(facts))[:8]}" if taken else cell.path
                locked.append(to_line(name, cell, settings, read_run(run)))
                kept = KeptCell.from_line(file, locked.lines[-1])
        self._cells.append(kept)
        return kept

    def _file(self, experiment: Experiment) -> Path:
        return self.folder / f"{experiment.name}{END}"


def to_line(name: str, cell: Cell, settings: Settings, run: FinishedRun) -> dict[str, Any]:
    """What is kept of a cell: what was found in its images stands apart from what was chosen."""
    values = flatten(tomllib.loads(settings.to_toml()))
    return {
        "cell": name,
        "label": cell.label,
        "seed": cell.seed,
        "settings": nest({setting: value for setting, value in values.items() if setting not in FREE_TO_CHANGE}),
        "data": run.facts.to_json() if run.facts else {},
        "summary": dict(run.summary),
        "rounds": to_rounds(run.records),
    }


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


def agree(cell: Cell, done: Settings, facts: DataFacts | None, paths: bool = True) -> bool:
    """Whether a finished run is the planned cell; with `paths`, its images must lie in the same folder, too.

    What the cell leaves open of its images, as nobody has looked at them yet, may be anything.
    """
    planned = cell.settings
    if (planned.seed, planned.task, planned.method) != (done.seed, done.task, done.method):  # seen at once, as most do
        return False
    if bool(planned.data.folder) == (facts is None or facts.synthetic):
        return False
    if cell.facts and images_of(cell.facts) != images_of(facts):
        return False
    settings = [_complete(planned, cell.facts), _complete(done, facts)]
    changed = differences(*(settings if paths else map(drop_paths, settings)))
    undecided = ("sites", "channels", "classes") if planned.data.folder and cell.facts is None else ()
    return set(changed) <= {f"data.{name}" for name in undecided if getattr(planned.data, name) is None}


def _complete(settings: Settings, facts: DataFacts | None) -> Settings:
    return settings if facts is None or facts.synthetic else facts.complete(settings)


def images_of(facts: DataFacts | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What tells a run's images, masks and labels from those of others; nothing tells synthetic ones."""
    return facts.images if facts else ((), ())
