"""What `results.json` holds: every cell of an experiment, whatever came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from harmofl.documents import read_json
from harmofl.errors import UsageError
from harmofl.experiments.plan import Paper

RESULTS = "results.json"


class CellState(BaseModel):
    """A cell: done, failed or missing."""

    model_config = ConfigDict(frozen=True)

    path: str
    label: str
    row: str
    variation: str
    held_out: str | None
    seed: int
    x: int | float | str | None = None
    """Its value of the setting along which the experiment's curve runs."""
    state: Literal["done", "failed", "missing"]
    error: str = ""
    folder: str = ""
    """Where the finished run lies, relative to the experiment's folder."""

    @property
    def line(self) -> str:
        """The label, and which site was held out."""
        return f"{self.label}, without {self.held_out}" if self.held_out else self.label


class ExperimentState(BaseModel):
    """An experiment as far as it is done."""

    model_config = ConfigDict(frozen=True)

    experiment: str
    title: str
    task: str
    preset: str
    data: str | None
    shows: str
    axis: str | None
    scores: str = "test"
    """On which images they were taken."""
    paper: Paper | None = None
    cells: list[CellState]
    reference: str
    """The row with which the others are compared, under the same variation."""
    baseline: str
    """The variation with which the reference row's others are compared; empty if nothing varies."""

    @property
    def done(self) -> list[CellState]:
        """The cells with scores."""
        return [cell for cell in self.cells if cell.state == "done"]

    @property
    def without_scores(self) -> list[CellState]:
        """The cells that failed or have not been run."""
        return [cell for cell in self.cells if cell.state != "done"]

    @property
    def holds_out(self) -> bool:
        """Whether sites took no part in turn."""
        return any(cell.held_out for cell in self.cells)


def is_experiment(folder: Path) -> bool:
    """Whether a folder holds an experiment."""
    return (folder / RESULTS).exists()


def read_state(folder: Path) -> ExperimentState:
    """Read an experiment's `results.json`, or say what is wrong with it."""
    path = folder / RESULTS
    try:
        return ExperimentState.model_validate(read_json(path))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise UsageError(f"{path} is not what an experiment writes: {where}: {problem['msg']}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
