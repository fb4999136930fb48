"""The functions of `import harmofl`. Each shows its progress and delegates; the work is done in the layers below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from harmofl.displays import show_progress
from harmofl.events import Watch, ignore
from harmofl.federation import training
from harmofl.methods.method import Method
from harmofl.runs.folder import Record
from harmofl.runs.model_folder import find_model_folder, open_model
from harmofl.tasks.scorers import Scores

if TYPE_CHECKING:
    from harmofl.analysis.comparison import Comparison
    from harmofl.analysis.plan import Plan
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
    profile: bool = False,
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
        resume: continue the run in `out`; no other argument is needed.
        profile: write where the time goes to profile.json, a trace for Chrome's and Perfetto's viewers.
        watch: a function that is called with every event (`harmofl.events`).
        progress: show bars in a terminal or notebook.

    Returns:
        The summary, as in summary.json: test scores from 0 to 1 by site, their average, the selected round.

    >>> summary = train("histology", "fedavg", preset="smoke", workers=1, out="runs/second")
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
            profile=profile,
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
    """Look at all images of a folder, as training would read them.

    Args:
        task: what is to be learned, such as "segmentation".
        data: the folder with the images.
        preset: where the settings start from.
        config: a TOML file with settings.
        settings: single settings as {"section.name": value}.
        sheet: a picture to write, with images of every site.
        clean_manifest: a file to write, with the rows of a manifest that can be used.
        watch, progress: as in `train`.

    Returns:
        Numbers per site and split with every problem, and the path of the picture, if one was written.

    >>> check, sheet = check_data("segmentation", "my-images", preset="smoke", sheet="sheet.png")
    >>> check.ok, str(sheet)
    (True, 'sheet.png')
    """
    from harmofl.reporting import data_check

    with show_progress(progress, watch) as shown:
        return data_check.check_data(
            task,
            Path(data),
            preset=preset,
            config=_path(config),
            settings=settings,
            sheet=_path(sheet),
            clean_manifest=_path(clean_manifest),
            watch=shown,
        )


def compare_data(
    task: str | None = None,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watch: Watch = ignore,
    progress: bool = True,
) -> Comparison:
    """Compare the hospitals of a folder, or synthetic ones, before training.

    Args:
        task: what is to be learned, such as "segmentation"; may also come from `config`.
        data: the folder with the images; the task's synthetic hospitals if there is none, here or in `config`.
        out: a folder for the page (compare.html) and its numbers (compare.json), if they are wanted.
        preset: where the settings start from.
        config: a TOML file with settings.
        settings: single settings as {"section.name": value}.
        watch, progress: as in `train`.

    Returns:
        A survey of every hospital, how far apart they look, and advice with its reason.

    >>> comparison = compare_data("prostate", preset="smoke", settings={"data.shift": 0})
    >>> comparison.advice[0].title
    'Nothing needs to be done about how images look'
    """
    from harmofl.reporting import comparison_page

    with show_progress(progress, watch) as shown:
        chosen = comparison_page.settings_to_compare(task, _path(data), preset, _path(config), settings)
        compared = comparison_page.compare_images(chosen, shown)
        if out is not None:
            comparison_page.write_comparison(Path(out), compared, watch=shown)
    return compared.comparison


def plan(
    task: str | None = None,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watch: Watch = ignore,
    progress: bool = True,
) -> Plan:
    """Plan a training from the images of all hospitals, by averages alone.

    Args:
        task: what is to be learned, such as "segmentation"; may also come from `config`.
        out: a folder for the plan in words (plan.md) and as settings (plan.toml), if they are wanted.
        data: the folder with the images; the task's synthetic hospitals if there is none, here or in `config`.
        preset: whose budget the plan keeps.
        config: a TOML file with settings.
        settings: single settings as {"section.name": value}.
        watch, progress: as in `train`.

    Returns:
        The planned settings with their reasons.

    >>> planned = plan("prostate", preset="smoke", out="plan")
    >>> planned.values["data.size"], planned.values["training.augmentation"]
    (32, 'strong')
    >>> summary = train(config="plan/plan.toml", workers=1, out="runs/planned")
    """
    from harmofl.reporting import plan_files

    with show_progress(progress, watch) as shown:
        made = plan_files.plan_images(task, _path(data), preset, _path(config), settings, shown)
    if out is not None:
        plan_files.write_plan(Path(out), made)
    return made


def load_model(folder: str | Path, site: str | None = None, method: Method | None = None) -> nn.Module:
    """Load a trained model in eval mode, harmonizer included.

    Args:
        folder: of the model, or of its run.
        site: whose model, where each site has its own.
        method: the one it was trained with, if it is your own and not registered.

    Returns:
        A module that takes raw images (N, C, H, W) from 0 to 1 and gives logits: (N, classes) in classification,
        (N, classes, H, W) in segmentation.

    >>> import torch
    >>> tuple(load_model("runs/first")(torch.rand(2, 3, 32, 32)).shape)  # images in, logits out
    (2, 2, 32, 32)
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
    """Score a finished model on labelled images, site by site.

    Args:
        folder: of the model, or of its run.
        data: a folder with images; the task's synthetic hospitals if there is none.
        site: whose model, where each site has its own.
        settings: changes of its data settings, as {"data.name": value}.
        split: "train", "val", "test" or "all"; "auto" takes the test images of sites that took part in training, and
            all images of other sites.
        device, watch, progress: as in `train`.

    Returns:
        The number of images, the loss and the scores (from 0 to 1, distances in pixels or mm) of each site.

    >>> scores = evaluate("runs/first", data="my-images")
    >>> sorted(scores)
    ['site-0', 'site-1', 'site-2']
    >>> 0 <= scores["site-0"]["metric"] <= 1
    True
    """
    from harmofl.inference.evaluation import evaluate_model

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
    overlap: float | None = None,
    mirror: bool | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    watch: Watch = ignore,
    progress: bool = True,
    overwrite: bool = False,
) -> list[Outcome]:
    """Write a mask for every new image, or one table of their classes.

    Args:
        folder: of the model, or of its run.
        images: files, folders or patterns.
        out: the folder to write.
        site: whose model, where each site has its own.
        overlay: also draw every mask on its image.
        dicom_seg: write masks of DICOM images as DICOM segmentations.
        overlap: of neighbouring windows in images larger than the network's input, as a part of their size; the
            model's setting if not given.
        mirror: whether to average over an image and its mirror images; the model's setting if not given.
        batch_size: windows at a time; by default as in training.
        device, watch, progress: as in `train`.
        overwrite: replace what an earlier prediction wrote to `out`, which is an error otherwise.

    Returns:
        An outcome per image, failed ones included; then one for everything in a folder that was left out.

    >>> outcomes = predict("runs/first", "my-images", out="predictions")
    >>> outcomes[0].output.exists()
    True
    """
    from harmofl.inference.prediction import predict as predict_images

    with show_progress(progress, watch) as shown:
        return predict_images(
            find_model_folder(Path(folder)),
            [images] if isinstance(images, (str, Path)) else images,
            Path(out),
            site,
            overlay,
            device,
            batch_size,
            dicom_seg,
            overlap,
            watch=shown,
            overwrite=overwrite,
            mirror=mirror,
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
    """Make a model for a hospital that took no part, with batch norm statistics of its own unlabelled images.

    Args:
        folder: of the model, or of its run.
        data: a folder of images; masks and labels beside them are not read.
        out: the folder to write.
        site: whose model to start from, if not that of all sites.
        min_images: fewer are an error, as their statistics would be those of a few patients.
        device, watch, progress: as in `train`.

    Returns:
        How many images were used, and how far the statistics moved.

    >>> summary = adapt("runs/first", "my-images", out="their-model")
    >>> summary.images >= 8
    True
    """
    from harmofl.inference.adaptation import adapt_model

    start = find_model_folder(Path(folder))
    with show_progress(progress, watch) as shown:
        return adapt_model(start, Path(data), Path(out), site=site, fewest=min_images, device=device, watch=shown)


def export(
    run: str | Path, format: Literal["onnx", "torchscript"], *, out: str | Path | None = None, site: str | None = None
) -> Path:
    """Write a finished model as one file that runs without harmofl, with a model card beside it.

    Args:
        run: the folder of the run, or of its model.
        format: "onnx" or "torchscript".
        out: the folder to write; by default `export` in the run's.
        site: whose model, where each site has its own.

    Returns:
        The path of the file.

    >>> export("runs/first", "torchscript", out="exported").name
    'model.pt'
    """
    from harmofl.inference.export import export_model

    return export_model(Path(run), format, _path(out), site)


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
    """Draw the loss around the selected models of runs on the same data, and measure its sharpness.

    Args:
        runs: their folders.
        out: the folder to write.
        images: training images per site; 0: as many as there is time for.
        points: along each axis of a plane, an odd number; 0: as many as there is time for.
        local_epochs: how long each site trains on from the model.
        seed: of directions and images.
        device, watch, progress: as in `train`.

    Returns:
        The files: tables and figures.
    """
    from harmofl.reporting.landscapes import draw_landscape

    options = {"images": images, "points": points, "local_epochs": local_epochs, "seed": seed}
    with show_progress(progress, watch) as shown:
        return draw_landscape([Path(run) for run in runs], Path(out), device, shown, **options)


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
    """Draw a task's images before and after harmonization, or what finished runs make of their test images.

    Args:
        runs: folders of finished runs or of an experiment; then there are no task, preset, bands and settings.
        out: the folder to write.
        task: whose images to draw: samples, amplitudes and statistics.
        data: a folder with images; where those of the runs lie now.
        preset: where the settings start from.
        bands: of the amplitudes that are harmonized; by default "dc" and "full".
        settings: single settings as {"section.name": value}.
        device, watch, progress: as in `train`.

    Returns:
        The files: figures, their captions and the numbers behind them.
    """
    from harmofl.experiments.pictures import draw_pictures

    folders = [Path(run) for run in runs]
    with show_progress(progress, watch) as shown:
        return draw_pictures(folders, Path(out), task, _path(data), preset, bands, settings, device, shown)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
