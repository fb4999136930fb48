"""The cells of an experiment: one run each, with every setting resolved."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.errors import UsageError
from harmofl.experiments.plan import Plan, Row, Variation, check_distinct, read_plan
from harmofl.files import folder_name
from harmofl.settings import Settings, flatten, merge, resolve

UNVARIED = Variation(name="as it is")

FindFacts = Callable[[Settings], DataFacts | None]
"""Looks at the images that settings name."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    row: str
    variation: str
    """Empty if nothing varies."""
    held_out: str | None
    settings: Settings
    facts: DataFacts | None = None
    """What was found in the images; None if nobody has looked yet."""

    @property
    def seed(self) -> int:
        """The seed of initialization and order."""
        return self.settings.seed

    @property
    def label(self) -> str:
        """The line of the table to which it belongs."""
        return f"{self.row}, {self.variation}" if self.variation else self.row

    @property
    def path(self) -> str:
        """The cell's folder, relative to the experiment's."""
        without = f"without {self.held_out}" if self.held_out else ""
        names = [self.row, " ".join(name for name in (self.variation, without) if name), f"seed {self.seed}"]
        return "/".join(folder_name(name) for name in names if name)

    def setting(self, name: str) -> Any:
        """The value of a setting, such as `method.radius`."""
        return flatten(self.settings.model_dump(mode="json")).get(name)

    def change_settings(self, change: Callable[[Settings], Settings]) -> Cell:
        """The same cell with other settings."""
        return replace(self, settings=change(self.settings))

    def add_facts(self, find: FindFacts) -> Cell:
        """The same cell with what is found in its images."""
        return replace(self, facts=find(self.settings))

    def __str__(self) -> str:
        """The cell's name in messages."""
        without = f", without {self.held_out}" if self.held_out else ""
        return f"{self.label}{without}, seed {self.seed}"


@dataclass(frozen=True)
class Experiment:
    """A plan with its data and preset chosen, and so all its cells."""

    name: str
    plan: Plan
    preset: str
    data: str | None
    cells: tuple[Cell, ...]

    @property
    def in_table_order(self) -> list[Cell]:
        """The cells line by line, in the order of the table."""
        rows = [row.name for row in self.plan.rows]
        variations = ["", *(variation.name for variation in self.plan.variations)]
        return sorted(self.cells, key=lambda cell: (rows.index(cell.row), variations.index(cell.variation)))


def read_experiment(file: Path | str, data: Path | str | None = None, preset: str | None = None) -> Experiment:
    """Read a plan and resolve the settings of all its cells, or say which are wrong."""
    file = Path(file)
    plan = read_plan(file)
    folder = os.path.abspath(data) if data else None
    size = preset or plan.preset or "small"
    try:
        cells = list(_cells(plan, folder, size))
        if plan.divide_rounds_by_local_epochs:
            cells = _with_equal_passes(cells)
        check_distinct("cells", (cell.path for cell in cells))  # sites may have any name
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
    return Experiment(file.stem, plan, size, folder, tuple(cells))


def _cells(plan: Plan, folder: str | None, preset: str) -> Iterator[Cell]:
    """Yield all cells of the first seed, then of the next: a grid that is half done already compares all rows."""
    held_out = _sites(plan, folder, preset) if plan.hold_out else [None]
    for seed in dict.fromkeys(seed for row in plan.rows for seed in plan.seeds_of(row.name)):
        for variation in plan.variations or [UNVARIED]:
            for row in plan.rows:
                if variation.has(row.name) and seed in plan.seeds_of(row.name):
                    for site in held_out:
                        yield _cell(plan, row, variation, site, folder, preset, seed)


def _cell(
    plan: Plan, row: Row, variation: Variation, site: str | None, folder: str | None, preset: str, seed: int
) -> Cell:
    values = flatten(merge(merge(plan.settings, row.settings), variation.settings))
    given = {"seed": seed, "data.folder": folder, "data.hold_out_site": site}
    values |= {name: value for name, value in given.items() if value is not None}
    varied = "" if variation is UNVARIED else variation.name
    try:
        settings, _ = resolve(plan.task, row.method, preset, overrides=values)
    except UsageError as error:
        where = f"row {row.name!r}" + (f", variation {varied!r}" if varied else "")
        raise UsageError(f"{where}: {error}") from None
    return Cell(row.name, varied, site, settings)


def _with_equal_passes(cells: Sequence[Cell]) -> list[Cell]:
    """Divide the rounds by the local epochs, so that every cell passes over the images equally often if it can."""
    shared = math.lcm(*(cell.settings.training.local_epochs for cell in cells))

    def divide(settings: Settings) -> Settings:
        rounds, epochs = settings.training.rounds, settings.training.local_epochs
        passes = rounds - rounds % shared if rounds >= shared else rounds
        return settings.with_values("training", rounds=max(1, round(passes / epochs)))

    return [cell.change_settings(divide) for cell in cells]


def _sites(plan: Plan, folder: str | None, preset: str) -> list[str]:
    """All sites that can be held out."""
    values = flatten(plan.settings) | ({"data.folder": folder} if folder else {})
    values = {name: value for name, value in values.items() if not name.startswith("method.")}
    settings, _ = resolve(plan.task, "fedavg", preset, overrides=values)
    task = registry.tasks.find(plan.task)
    return task.open_folder(settings.data).sites if folder else list(task.sites_of(settings.data))
