"""The Python calls that the commands make too."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from harmofl import registry
from harmofl.devices import check_device
from harmofl.displays import show_progress
from harmofl.errors import UsageError
from harmofl.events import Watch, ignore
from harmofl.federation import training
from harmofl.files import check_writable, write_whole
from harmofl.methods.method import Method
from harmofl.plugins import load_plugins, plugins_in
from harmofl.runs.folder import Record
from harmofl.runs.model_folder import find_model_folder, open_model
from harmofl.settings import read_toml, resolve
from harmofl.tasks.data_facts import adapt_to_folder, fill_in_data_facts
from harmofl.tasks.scorers import Scores

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from harmofl.data.check import Check
    from harmofl.inference.adaptation import AdaptationSummary
    from harmofl.inference.outcomes import Outcome


def train(
    task: str | None = None,
    method: str | Method | None = None,
    *,
    out: str | Path,
    data: str | Path | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    seed: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    watch: Watch = ignore,
    progress: bool = True,
) -> Record:
    """Train one method on one task.

    Args:
        task: what is learned, such as "nuclei"; may also come from `config`.
        method: how: a name, or a `Method` of your own; may also come from `config`.
        out: the folder to write.
        data: the folder with the images; the task's synthetic hospitals if there is none, here or in `config`.
        preset: where the settings start from: "smoke", "small" (the default), "paper" or "paper-code".
        config: a TOML file with settings, such as a run's config.toml.
        seed: of initialization and order, never of the data.
        workers: processes side by side; 0: one per core. Results do not depend on it.
        device: "auto", "cpu" or "cuda".
        settings: single settings as {"section.name": value}.
        resume: go on with the run in `out`, which needs nothing else.
        watch: a function that is called with every event (`harmofl.events`).
        progress: show bars in a terminal or notebook.

    Returns:
        The summary, as in summary.json: test scores from 0 to 1 by site, their average, the selected round.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as out:
    ...     summary = train("histology", "fedavg", preset="smoke", workers=1, out=out)
    >>> 0 <= summary["test"]["average"] <= 1
    True
    """
    with show_progress(progress, watch) as shown:
        return training.train(
            task,
            method,
            out=out,
            data=data,
            preset=preset,
            config=config,
            seed=seed,
            workers=workers,
            device=device,
            settings=settings,
            resume=resume,
            watch=shown,
        )


def check_data(
    task: str,
    data: str | Path,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    sheet: str | Path | None = None,
    clean_manifest: str | Path | None = None,
    watch: Watch = ignore,
    progress: bool = True,
) -> tuple[Check, Path | None]:
    """Look at all images of a folder: numbers per site and split, and every problem.

    `sheet`: a picture to write. `clean_manifest`: a file to write with the rows of a manifest that can be used.
    """
    from harmofl.data.check import check_images
    from harmofl.data.clean_manifest import write_clean_manifest

    overrides = {"data.limit": 0} | dict(settings or {}) | {"data.folder": os.path.abspath(data)}
    file = read_toml(Path(config)) if config else {}
    load_plugins(plugins_in(file))
    resolved, _ = resolve(task, "fedavg", preset, file, overrides)
    resolved = adapt_to_folder(resolved, file, overrides)
    chosen = registry.tasks.find(task)
    with show_progress(progress, watch) as shown:
        folder = chosen.open_folder(resolved.data, shown)
        check = check_images(chosen, folder)
    if clean_manifest is not None:
        write_clean_manifest(Path(clean_manifest), folder, check)
    if sheet is None or not folder.all_sites:
        return check, None
    from harmofl.reporting.contact_sheet import contact_sheet
    from harmofl.reporting.style import to_png

    try:
        write_whole(Path(sheet), to_png(contact_sheet(chosen, folder)))
    except OSError as error:  # what was found counts more than its picture
        logger.warning("--sheet %s: %s", sheet, error.strerror or error)
        return check, None
    return check, Path(sheet)


def load_model(folder: str | Path, site: str | None = None, method: Method | None = None) -> nn.Module:
    """A trained model in eval mode, harmonizer included: raw images (N, C, H, W) in [0, 1] in, logits out.

    `site`: whose model, where each site has its own. `method`: the one it was trained with, if it is your own and
    not registered.
    """
    return open_model(find_model_folder(Path(folder)), site, method).model


def evaluate(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    site: str | None = None,
    settings: Mapping[str, Any] | None = None,
    split: str = "auto",
    device: str = "auto",
    watch: Watch = ignore,
    progress: bool = True,
) -> dict[str, Scores]:
    """Score a finished model per site: on labelled images of a folder, or on the test images of its task's phantom.

    `settings`: changes of its data settings. `site`: whose model, where each site has its own. `split`: train, val,
    test or all images; auto takes the test images of sites that took part in training, and all of other sites.
    """
    from harmofl.inference.evaluation import evaluate_model

    check_device(device)
    with show_progress(progress, watch) as shown:
        return evaluate_model(find_model_folder(Path(folder)), data, site, settings, split, device, shown)


def predict(
    folder: str | Path,
    images: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    site: str | None = None,
    overlay: bool = False,
    dicom_seg: bool = False,
    overlap: float = 0.25,
    batch_size: int | None = None,
    device: str = "auto",
    watch: Watch = ignore,
    progress: bool = True,
    overwrite: bool = False,
) -> list[Outcome]:
    """Masks or classes for new images: files, folders or patterns; one outcome per image, failed ones included.

    What lies in a folder and is not predicted has an outcome too, after the others; its `left_out` says why.

    `overwrite`: replace what an earlier prediction wrote to `out`; else that is refused.
    """
    from harmofl.inference.prediction import predict as predict_images

    check_device(device)
    named = [images] if isinstance(images, (str, Path)) else images
    with show_progress(progress, watch) as shown:
        return predict_images(
            find_model_folder(Path(folder)),
            named,
            Path(out),
            site,
            overlay,
            device,
            batch_size,
            dicom_seg,
            overlap,
            watch=shown,
            overwrite=overwrite,
        )


def adapt(
    folder: str | Path,
    data: str | Path,
    *,
    out: str | Path,
    site: str | None = None,
    min_images: int = 8,
    device: str = "auto",
    watch: Watch = ignore,
    progress: bool = True,
) -> AdaptationSummary:
    """Make a model for a hospital that took no part, from its unlabelled images: batch norm statistics of its own.

    `data`: a folder of images; masks and labels beside them are not read. `site`: whose model to start from, if not
    that of all sites. `min_images`: fewer are refused, as their statistics would be those of a few patients.
    """
    from harmofl.inference.adaptation import adapt_model

    check_device(device)
    start = find_model_folder(Path(folder))
    with show_progress(progress, watch) as shown:
        return adapt_model(start, Path(data), Path(out), site=site, fewest=min_images, device=device, watch=shown)


def export(
    run: str | Path, format: Literal["onnx", "torchscript"], *, out: str | Path | None = None, site: str | None = None
) -> Path:
    """Write a finished model as one file that runs without harmofl, with a model card beside it."""
    from harmofl.inference.export import export_model

    return export_model(Path(run), format, Path(out) if out else None, site)


def landscape(
    runs: Sequence[str | Path],
    *,
    out: str | Path,
    images: int = 0,
    points: int = 0,
    local_epochs: int = 3,
    seed: int = 0,
    device: str = "auto",
    watch: Watch = ignore,
    progress: bool = True,
) -> list[Path]:
    """Draw the loss around the selected models of runs on the same data, and measure sharpness; return the files."""
    from harmofl.analysis.landscape import landscape as survey
    from harmofl.reporting.landscape_figures import write_figures
    from harmofl.reporting.landscape_table import write_tables

    check_device(device)
    out = Path(out)
    check_writable(out)
    with show_progress(progress, watch) as shown:
        found = survey(
            [Path(run) for run in runs],
            out,
            points=points,
            local_epochs=local_epochs,
            images=images,
            seed=seed,
            device=device,
            watch=shown,
        )
    return write_tables(found, out) + write_figures(found, out)


def pictures(
    runs: Sequence[str | Path] = (),
    *,
    out: str | Path,
    task: str | None = None,
    data: str | Path | None = None,
    preset: str | None = None,
    bands: Sequence[str | float] | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    watch: Watch = ignore,
    progress: bool = True,
) -> list[Path]:
    """Draw a task's images before and after harmonization, or what finished runs make of theirs; return the files.

    `task`: samples, amplitudes and statistics of its images, for some `bands`. `runs`: their masks or classes for
    test images chosen by a rule; `data`: where the images lie now.
    """
    from harmofl.analysis.hospitals import parse_band
    from harmofl.experiments.finding import find_runs
    from harmofl.reporting.pictures import draw_appearance, draw_cases

    check_device(device)
    folder = None if data is None else Path(data)
    given = {"task": task, "preset": preset, "band": bands, "settings": settings}
    if runs:
        if named := [name for name, value in given.items() if value]:
            raise UsageError(
                f"{named[0]} = {given[named[0]]!r}: runs have their own; leave it out, or leave out the runs"
            )
        with show_progress(progress, watch) as shown:
            return draw_cases(find_runs([Path(run) for run in runs], folder), Path(out), device, shown)
    if not task:
        raise UsageError("nothing to draw: name a task (--task), or the folders of finished runs")
    chosen = [parse_band(str(band)) for band in bands or ("dc", "full")]
    overrides = dict(settings or {}) | ({"data.folder": os.path.abspath(folder)} if folder else {})
    resolved, _ = resolve(task, "fedavg", preset, overrides=overrides)
    with show_progress(progress, watch) as shown:
        return draw_appearance(fill_in_data_facts(resolved, shown), chosen, Path(out), device, shown)
