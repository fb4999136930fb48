"""The demonstration: three runs on five synthetic hospitals, told as one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harmofl.analysis.feature_shift import shifts_at_sites
from harmofl.errors import UsageError
from harmofl.events import Watch
from harmofl.extras import require
from harmofl.federation.training import train
from harmofl.reporting.image_grid import image_grid
from harmofl.reporting.page import Picture, page_for_runs
from harmofl.reporting.shift_figures import scores_by_shift
from harmofl.runs.finished import FinishedRun, read_run
from harmofl.runs.folder import RunFolder
from harmofl.runs.model_folder import open_model
from harmofl.states import evaluating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK = "histology"
METHODS = ("fedavg", "harmofl", "freshbn")
"""The usual one, the paper's, and the one that we recommend (docs/results.md)."""
IMAGES_PER_SITE = 4
IMAGES_FOR_SHIFTS = 64

OWN_IMAGES: tuple[tuple[str, str], ...] = (
    (
        "Check a folder of your own: a manifest.csv with site, image and mask (or label) columns",
        "harmofl data check --task segmentation --data my-images",
    ),
    (
        "See how far your hospitals differ, and what to do about it",
        "harmofl data compare --task segmentation --data my-images",
    ),
    (
        "Train on them with the method that we recommend: each hospital estimates its own statistics",
        "harmofl train --task segmentation --method freshbn --data my-images --out runs/ours",
    ),
    (
        "Predict for new patients of one of the hospitals",
        "harmofl predict runs/ours/model new-patients --site HOSPITAL --out predictions",
    ),
    ("See every method, its settings and their defaults", "harmofl methods"),
)
"""What to do next, and the command that does it."""


def run_demo(out: Path, watch: Watch, preset: str = "small") -> tuple[list[FinishedRun], Path]:
    """Train what is not trained yet, and write the page."""
    require("reports", "the demo's page")
    runs = [_run(out, method, watch, preset) for method in METHODS]
    page = out / "report.html"
    images = load_test_images(runs[0].model)
    shifts = {run.title: shifts_at_sites(run.model, images) for run in runs}
    page_for_runs(
        runs,
        page,
        samples_figure=harmonized_samples(out / "harmofl" / "model", images),
        more_pictures={"shift": Picture(scores_by_shift(runs, shifts), tell_shifts(runs, shifts))},
        next_steps=OWN_IMAGES,
    )
    return runs, page


def _run(out: Path, method: str, watch: Watch, preset: str) -> FinishedRun:
    folder = out / method
    resume = RunFolder(folder).config.exists()
    try:
        train(TASK, method, preset=preset, out=folder, resume=resume, watch=watch)
    except UsageError as error:
        if resume:
            raise UsageError(f"{out} holds another demo: remove it, or choose another --out ({error})") from None
        raise
    return read_run(folder)


def load_test_images(folder: Path) -> dict[str, Tensor]:
    """The first test images of every site, for a model's task."""
    _, task, settings, _ = open_model(folder)
    images = {name: task.load_site(name, settings.data).test[name] for name in task.sites_of(settings.data)}
    return {name: own.load(torch.arange(min(IMAGES_FOR_SHIFTS, len(own)))).images for name, own in images.items()}


def tell_shifts(runs: Sequence[FinishedRun], shifts: Mapping[str, Mapping[str, float]]) -> str:
    """Say what the picture of shifts shows: where the first run scores worst, and what its features are like there."""
    first, last = runs[0], runs[-1]
    worst = min(first.scores, key=lambda site: first.score.rank(first.scores[site]))
    told = (
        "Each mark is a hospital. Batch norm layers normalize features with stored means and deviations: the further "
        f"a hospital's features lie from them, the less the network recognizes. {first.title} does worst at {worst} "
        f"({first.score.text(first.scores[worst])})"
    )
    if worst not in shifts.get(first.title, {}) or worst not in shifts.get(last.title, {}):
        return told + "."
    return (
        f"{told}, whose features lie {shifts[first.title][worst]:.2f} deviations from the averaged statistics; "
        f"{last.title} scores {last.score.text(last.scores[worst])} there, at {shifts[last.title][worst]:.2f}."
    )


def harmonized_samples(folder: Path, images: Mapping[str, Tensor]) -> Figure:
    """Images of every site before and after a trained model's harmonizer."""
    model, task, _, _ = open_model(folder)
    few = {name: own[:IMAGES_PER_SITE] for name, own in images.items()}
    with evaluating(model):
        rows = {name: {"before": own, "after harmonization": model.harmonizer(own)} for name, own in few.items()}
    return image_grid(rows, gray=task.name == "prostate")
