"""Figures of kept results as small PNG files, each with a digest of the numbers that it was drawn from.

Whether a file is fresh can be told without drawing: a picture's bytes change with every version of what draws it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harmofl.analysis.measured_terms import RunTerms, terms_of_cells
from harmofl.experiments.lines import points_of
from harmofl.experiments.results import Results
from harmofl.files import write_whole
from harmofl.reporting import experiment_figures, figures
from harmofl.reporting.drift_figures import CAPTION, drift_with_terms
from harmofl.reporting.experiment_figures import Point
from harmofl.reporting.style import to_png
from harmofl.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110
COLOURS = 256
"""In the palette. The colours furthest apart are taken: the most frequent ones would leave out those of thin lines."""

DRAWN_FROM = "drawn-from"
"""The name of the PNG's text that holds the digest of the numbers."""


@dataclass(frozen=True)
class Drawing:
    """A figure of an experiment, not drawn yet."""

    file: str
    caption: str
    explanation: str
    digest: str
    draw: Callable[[], Figure]

    def is_fresh(self, path: Path) -> bool:
        """Whether the file was drawn from the same numbers."""
        from PIL import Image

        if not path.exists():
            return False
        with Image.open(path) as image:
            return image.info.get(DRAWN_FROM) == self.digest

    def write(self, path: Path) -> None:
        """Draw the figure, with few colours."""
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        notes = PngInfo()
        notes.add_text(DRAWN_FROM, self.digest)
        buffer = io.BytesIO()
        with Image.open(io.BytesIO(to_png(self.draw(), dpi=DPI))) as image:
            few = image.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            few.save(buffer, "PNG", optimize=True, pnginfo=notes)
        write_whole(path, buffer.getvalue())


@dataclass(frozen=True)
class Material:
    """What an experiment's figures are drawn from."""

    runs: Sequence[FinishedRun]
    points: Sequence[Point] = ()
    terms: Sequence[RunTerms] = ()


@dataclass(frozen=True)
class FigureKind:
    """A figure that a block may ask for."""

    caption: str
    draw: Callable[[Material], Figure]
    is_possible: Callable[[Material], bool] = lambda material: True
    explanation: str = ""
    """What must stand below the picture itself."""


FIGURES = {
    "sites": FigureKind("test scores at each site", lambda given: figures.per_site_scores(given.runs)),
    "convergence": FigureKind("test score after each round", lambda given: figures.convergence(given.runs)),
    "drift": FigureKind("drift of each round", lambda given: figures.drift(given.runs)),
    "drift-by-site": FigureKind(
        "drift of each site and round, a panel per method", lambda given: experiment_figures.drift_by_site(given.runs)
    ),
    "drift-terms": FigureKind(
        "drift of each site and round, and the terms of the bound on it as measured",
        lambda given: drift_with_terms(given.terms),
        lambda given: bool(given.terms),
        CAPTION,
    ),
    "bytes": FigureKind("test score by megabytes sent", lambda given: experiment_figures.score_by_bytes(given.runs)),
    "curve": FigureKind(
        "average test score",
        lambda given: experiment_figures.score_curves(given.points),
        lambda given: len(given.points) > 1,
    ),
    "variations": FigureKind(
        "average test score under each variation",
        lambda given: experiment_figures.scores_by_variation(given.points),
        lambda given: len(given.points) > 1,
    ),
    "unseen": FigureKind(
        "test scores at hospitals that took no part", lambda given: experiment_figures.unseen_scores(given.runs)
    ),
}


def drawings_of(results: Results, names: Sequence[str], folder: Path) -> list[Drawing]:
    """The experiment's figures that its results allow; `folder` holds what was measured afterwards."""
    if not results.runs:
        return []
    given, experiment = material_of(results, folder), results.experiment
    return [
        Drawing(
            file=f"{experiment.name}-{name}.png",
            caption=f"{experiment.plan.title}: {FIGURES[name].caption}",
            explanation=FIGURES[name].explanation,
            digest=digest_of(name, given),
            draw=partial(FIGURES[name].draw, given),
        )
        for name in names
        if FIGURES[name].is_possible(given)
    ]


def material_of(results: Results, folder: Path) -> Material:
    """Gather what the figures need."""
    cells = {cell.path: (cell.label, cell.seed) for cell in results.experiment.in_table_order}
    runs = results.lines()
    return Material(runs, _points(results, runs), terms_of_cells(cells, folder))


def digest_of(name: str, given: Material) -> str:
    """A digest of the numbers behind a figure."""
    runs = [(run.title, run.seed, run.summary["test"], run.summary.get("unseen"), run.records) for run in given.runs]
    terms = [asdict(run) for run in given.terms] if name == "drift-terms" else []
    return hashlib.sha256(json.dumps([name, runs, terms]).encode()).hexdigest()[:16]


def _points(results: Results, runs: Sequence[FinishedRun]) -> list[Point]:
    experiment = results.experiment
    axis = experiment.plan.axis
    cells = {cell.label: (cell.row, cell.setting(axis) if axis else cell.variation) for cell in experiment.cells}
    return points_of(runs, axis, cells)
