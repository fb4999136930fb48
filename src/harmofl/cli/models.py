"""`harmofl evaluate`, `predict`, `adapt` and `export`: using a finished model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from harmofl.cli.options import Assignments, Device, ModelFolder, PluginFiles, Quiet, Site


def evaluate(
    model: ModelFolder,
    data: Annotated[
        Path | None,
        typer.Option(help="Labelled images in the layout of the model's task; without it, its synthetic hospitals."),
    ] = None,
    site: Site = None,
    split: Annotated[
        Literal["auto", "train", "val", "test", "all"],
        typer.Option(help="Which images; auto: test images of sites that took part in training, all images of others."),
    ] = "auto",
    device: Device = "auto",
    assignments: Assignments = [],  # noqa: B006
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Score a finished model per site, with every metric.

    On labelled images, also of new hospitals:  harmofl evaluate runs/first/model --data new-images

    On synthetic hospitals that differ twice as much:  harmofl evaluate runs/first/model --set data.shift=2
    """
    from harmofl import api
    from harmofl.cli.tables import show_scores
    from harmofl.displays import open_display
    from harmofl.runs.model_folder import find_model_folder, score_name
    from harmofl.settings import parse_assignments

    settings = parse_assignments(assignments)
    with open_display(quiet) as watch:
        scores = api.evaluate(
            model, data=data, site=site, settings=settings, split=split, device=device, watch=watch, progress=False
        )
    show_scores(scores, score_name(find_model_folder(model)))


def predict(
    model: ModelFolder,
    images: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders or patterns; DICOM files in a folder are grouped by series.", metavar="IMAGE..."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    overlay: Annotated[bool, typer.Option("--overlay", help="Also draw each image with its mask.")] = False,
    site: Site = None,
    dicom_seg: Annotated[
        bool, typer.Option("--dicom-seg", help="Write DICOM segmentation objects, not NIfTI, for DICOM series.")
    ] = False,
    overlap: Annotated[
        float | None,
        typer.Option(help="Overlap of the windows of a large image, from 0 to 0.9; the model's setting if not given."),
    ] = None,
    mirror: Annotated[
        bool | None,
        typer.Option("--mirror/--no-mirror", help="Average over mirror images; the model's setting if not given."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows at a time; as in training if not given.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier prediction wrote to OUT.")
    ] = False,
    device: Device = "auto",
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Predict masks or classes for new images (PNG, JPEG, TIFF, NIfTI, DICOM, MHA, NRRD).

    Masks have the image's own size, orientation and spacing; classes go to OUT/predictions.csv.

    For example:  harmofl predict runs/first/model new-patients/ --out predictions --overlay
    """
    from harmofl import api
    from harmofl.cli.tables import show_outcomes
    from harmofl.displays import open_display

    with open_display(quiet) as watch:
        outcomes = api.predict(
            model,
            images,
            out=out,
            site=site,
            overlay=overlay,
            dicom_seg=dicom_seg,
            overlap=overlap,
            mirror=mirror,
            batch_size=batch_size,
            device=device,
            watch=watch,
            progress=False,
            overwrite=overwrite,
        )
    show_outcomes(outcomes, out)
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(1)


def adapt(
    model: ModelFolder,
    data: Annotated[Path, typer.Option(help="The hospital's images; masks and labels beside them are not read.")],
    out: Annotated[Path, typer.Option("--out", help="The model folder to write.")],
    site: Annotated[str | None, typer.Option(help="Whose model to start from, if not that of all sites.")] = None,
    min_images: Annotated[
        int, typer.Option(min=2, help="Refuse fewer images: their statistics would be those of a few patients.")
    ] = 8,
    device: Device = "auto",
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Make a model for a hospital that took no part, from its unlabelled images.

    Batch norm statistics, and what the harmonizer knows of its own site, are estimated on them; weights do not change.

    For example:  harmofl adapt runs/first/model --data our-images --out our-model
    """
    from harmofl import api
    from harmofl.cli.tables import show_adaptation
    from harmofl.displays import open_display

    with open_display(quiet) as watch:
        summary = api.adapt(
            model, data, out=out, site=site, min_images=min_images, device=device, watch=watch, progress=False
        )
    show_adaptation(summary, out)


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a model folder.", metavar="RUN_DIR")],
    file_format: Annotated[
        Literal["onnx", "torchscript"],
        typer.Option("--format", help="onnx needs an extra: pip install 'harmofl\\[onnx]'."),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write; RUN_DIR/export if not given.")] = None,
    site: Site = None,
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Write a finished model as one file that runs without harmofl, with a model card (MODEL.md) beside it.

    Raw images in [0, 1] go in, logits come out: the harmonizer is inside. The file is checked before it is kept.

    For example:  harmofl export runs/first --format onnx
    """
    from harmofl import api

    path = api.export(run, file_format, out=out, site=site)
    print(f"{path}\n{path.parent / 'MODEL.md'}")
