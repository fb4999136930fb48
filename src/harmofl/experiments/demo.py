"""The demonstration: three runs on five synthetic hospitals, told as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from harmofl.errors import UsageError
from harmofl.events import Watch
from harmofl.extras import require
from harmofl.federation.training import train
from harmofl.reporting.image_grid import image_grid
from harmofl.reporting.page import page_for_runs
from harmofl.runs.finished import FinishedRun, read_run
from harmofl.runs.folder import RunFolder
from harmofl.runs.model_folder import open_model
from harmofl.states import evaluating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK = "histology"
RUNS: dict[str, tuple[str, str, dict[str, str]]] = {
    "fedavg": ("FedAvg", "fedavg", {}),
    "harmofl": ("HarmoFL", "harmofl", {}),
    "own-statistics": ("FedAvg with own statistics", "fedavg", {"model.statistics": "site"}),
}
"""By the name of their folder: a title, a method and its settings. The third shows what averaged statistics cost."""
IMAGES_PER_SITE = 4


def run_demo(out: Path, watch: Watch) -> tuple[list[FinishedRun], Path]:
    """Train what is not trained yet, and write the page."""
    require("reports", "the demo's page")
    runs = []
    for name, (title, method, settings) in RUNS.items():
        folder = out / name
        resume = RunFolder(folder).config.exists()
        try:
            train(TASK, method, preset="small", settings=settings, out=folder, resume=resume, watch=watch)
        except UsageError as error:
            if resume:
                raise UsageError(f"{out} holds another demo: remove it, or choose another --out ({error})") from None
            raise
        runs.append(read_run(folder).with_label(title))
    page = out / "report.html"
    page_for_runs(runs, page, samples_figure=harmonized_samples(out / "harmofl" / "model"))
    return runs, page


def harmonized_samples(folder: Path) -> Figure:
    """Images of every site before and after a trained model's harmonizer."""
    model, task, settings, _ = open_model(folder)
    rows = {}
    with evaluating(model):
        for name in task.sites_of(settings.data):
            images = task.load_site(name, settings.data).test[name].load(torch.arange(IMAGES_PER_SITE)).images
            rows[name] = {"before": images, "after harmonization": model.harmonizer(images)}
    return image_grid(rows, gray=task.name == "prostate")
