"""Cells that train the same and only use their models otherwise: the first trains, the others take what it gave."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harmofl.experiments.cells import Cell
from harmofl.federation.trained_rounds import training_key

FOLDER = ".trained"


class SharedTrainings:
    """What cells of one training share, in a hidden folder until the last of them is done."""

    def __init__(self, out: Path, cells: Sequence[Cell]) -> None:
        """`cells`: those that are still to run."""
        self._out = out
        self._keys = {cell.path: training_key(cell.settings) for cell in cells}
        self._counts = Counter(self._keys.values())

    def folder_for(self, cell: Cell) -> Path | None:
        """Where a cell leaves or finds what its training gives; None if no other cell trains the same."""
        place = self._place(cell)
        return place if self._counts[self._keys[cell.path]] > 1 or place.exists() else None

    def choose(self, cells: Sequence[Cell], under_way: Sequence[Cell]) -> Cell | None:
        """The cell to run next: first one whose training is there already, none whose training is under way."""
        busy = {self._keys[cell.path] for cell in under_way}
        free = [cell for cell in cells if self._keys[cell.path] not in busy]
        return min(free, key=lambda cell: not self._place(cell).exists(), default=None)

    def release(self, cell: Cell, cells: Sequence[Cell]) -> None:
        """Remove what a cell's training gave, unless one of these still needs it."""
        if all(self._keys[other.path] != self._keys[cell.path] for other in cells):
            shutil.rmtree(self._place(cell), ignore_errors=True)
            with suppress(OSError):  # there are others in it, or it was never made
                (self._out / FOLDER).rmdir()

    def _place(self, cell: Cell) -> Path:
        return self._out / FOLDER / self._keys[cell.path]
