"""The commands: parse, call, show; no logic."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from harmofl.completion import complete_device, complete_method, complete_preset, complete_setting, complete_task
from harmofl.deployment.commands import PluginFiles, deploy_app
from harmofl.errors import RunError, UsageError
from harmofl.files import FULL_OR_BROKEN, what_failed
from harmofl.version import __version__

app = typer.Typer(
    name="harmofl",
    help="Train one model on medical images of several hospitals that look different, without sharing the images.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_options = {"debug": False}

Out = Annotated[Path, typer.Option("--out", help="The folder to write; it must not hold a run yet.")]
Assignments = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="One setting; may be given several times.",
        autocompletion=complete_setting,
    ),
]
Device = Annotated[str, typer.Option(help="auto (CUDA if there is one), cpu or cuda.", autocompletion=complete_device)]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print results, warnings and errors only.")]


def main() -> None:
    """Run a command; every expected problem is one line on stderr and an exit code."""
    replace_unknown_characters()
    try:
        app()
    except UsageError as error:
        _fail(error, str(error), 2)
    except OSError as error:
        _fail(error, what_failed(error), 1 if error.errno in FULL_OR_BROKEN else 2)
    except RunError as error:
        _fail(error, str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)


def replace_unknown_characters() -> None:
    """Print a question mark for what the terminal's encoding cannot show, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _fail(error: Exception, words: str, code: int) -> None:
    if _options["debug"]:
        raise error
    print(f"harmofl: {words}", file=sys.stderr)
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"harmofl {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    _options["debug"] = debug
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format="harmofl: %(message)s")
    if not debug:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")  # other packages' deprecations are not for users to read


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder for the runs and the page.")] = Path("harmofl-demo"),
    quiet: Quiet = False,
) -> None:
    """FedAvg and HarmoFL on five synthetic hospitals: a table and a page, in a few minutes.

    Run again, it goes on where it was, or shows what is there.
    """
    from harmofl.console import interruptible, show_table
    from harmofl.displays import open_display
    from harmofl.experiments.demo import run_demo

    with interruptible(lambda: "the same command goes on where it was"), open_display(quiet) as watch:
        runs, page = run_demo(out, watch)
    show_table(runs)
    print(f"\nThe whole story, with pictures: {page}")


@app.command()
def train(
    out: Out,
    task: Annotated[
        str | None, typer.Option(help="What is learned: see `harmofl tasks`.", autocompletion=complete_task)
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="How: see `harmofl methods`.", autocompletion=complete_method)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder with the images; without it, the task's synthetic hospitals.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="smoke (seconds), small (minutes on two cores, the default), paper or paper-code.",
            autocompletion=complete_preset,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings from a TOML file, such as a run's config.toml.")] = None,
    assignments: Assignments = [],  # noqa: B006
    seed: Annotated[int | None, typer.Option(help="Changes initialization and order, never the data.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes side by side (0: one per core). Results do not depend on it."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto (CUDA if there is one), cpu or cuda.", autocompletion=complete_device),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    log: Annotated[
        Literal["tensorboard"] | None, typer.Option(help="Also log to OUT/tensorboard (extra: tensorboard).")
    ] = None,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Train one method on one task.

    On synthetic hospitals:  harmofl train --task nuclei --method harmofl --set method.radius=0.1 --out runs/first

    On your own images:  harmofl train --task segmentation --method harmofl --data my-images --out runs/ours

    A run that was stopped:  harmofl train --out runs/ours --resume
    """
    from harmofl import api
    from harmofl.console import how_to_resume, interruptible, show_summary
    from harmofl.displays import open_display
    from harmofl.displays.tensorboard import log_to_tensorboard
    from harmofl.events import Watchers, ignore
    from harmofl.settings import parse_assignments

    settings = parse_assignments(assignments)
    with (
        interruptible(lambda: how_to_resume(out)),
        open_display(quiet) as watch,
        log_to_tensorboard(out / "tensorboard") if log else nullcontext(ignore) as board,
    ):
        summary = api.train(
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
            watch=Watchers((watch, board)),
            progress=False,
        )
    show_summary(summary, out)


@app.command()
def experiment(
    file: Annotated[Path, typer.Argument(help="What to run, such as experiments/table-nuclei.toml.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write: one run folder per cell, and the tables.")],
    data: Annotated[
        Path | None, typer.Option(help="The folder with the images; without it, the task's synthetic hospitals.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="smoke (seconds a cell), small (minutes, the default), paper or paper-code.",
            autocompletion=complete_preset,
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells side by side; as many as there are cores.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the experiment in --out.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(help="Also keep finished cells here, in short; cells that are kept here are not run again."),
    ] = None,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Run a grid of methods, variations and seeds; write tables with a test of every difference.

    A finished cell is never run again, a failed one does not stop the others, and --resume goes on after a kill.

    For example:  harmofl experiment experiments/ablation-nuclei.toml --preset smoke --out runs/ablation
    """
    from harmofl.console import interruptible, show_results
    from harmofl.displays import open_display
    from harmofl.experiments.report import write_report
    from harmofl.experiments.runner import run_experiment

    how_to_go_on = "the same command with --resume goes on where it was"
    with interruptible(lambda: how_to_go_on), open_display(quiet) as watch:
        results = run_experiment(file, out, data, preset, jobs, resume, keep, watch)
    show_results(results, out)
    if results.runs:
        print(f"Tables and figures on one page: {write_report(out)}")
    if results.missing:
        raise typer.Exit(1)


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(help="A run's folder, a folder of runs, or an experiment's folder.", metavar="DIR")
    ],
    reference: Annotated[
        str | None,
        typer.Option(help="The row of the table with which all others are compared; the plan's own by default."),
    ] = None,
) -> None:
    """Write DIR/report.html, from records alone: one page that opens offline.

    For example:  harmofl report runs/first
    """
    from harmofl.experiments.report import write_report

    print(write_report(folder, reference))


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder, such as runs/first/model.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Labelled images in the layout of the model's task; else its synthetic hospitals."),
    ] = None,
    site: Annotated[str | None, typer.Option(help="Whose model, where each site has its own (FedBN, local).")] = None,
    split: Annotated[
        Literal["auto", "train", "val", "test", "all"],
        typer.Option(help="Which images; auto: test images of sites that took part in training, all of others."),
    ] = "auto",
    device: Device = "auto",
    assignments: Assignments = [],  # noqa: B006
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Score a finished model per site, with every metric.

    On labelled images, new hospitals among them:  harmofl evaluate runs/first/model --data new-images

    On synthetic hospitals that differ twice as much:  harmofl evaluate runs/first/model --set data.shift=2
    """
    from harmofl import api
    from harmofl.console import show_scores
    from harmofl.displays import open_display
    from harmofl.runs.model_folder import find_model_folder, score_name
    from harmofl.settings import parse_assignments

    settings = parse_assignments(assignments)
    with open_display(quiet) as watch:
        scores = api.evaluate(
            model, data=data, site=site, settings=settings, split=split, device=device, watch=watch, progress=False
        )
    show_scores(scores, score_name(find_model_folder(model)))


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A model folder, such as runs/first/model.", metavar="MODEL_DIR")],
    images: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders or patterns; DICOM files of a folder are joined by series.", metavar="IMAGE..."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    overlay: Annotated[bool, typer.Option("--overlay", help="Also a picture of each image with its mask.")] = False,
    site: Annotated[str | None, typer.Option(help="Whose model, where each site has its own (FedBN, local).")] = None,
    dicom_seg: Annotated[
        bool, typer.Option("--dicom-seg", help="DICOM segmentation objects for DICOM series, not NIfTI.")
    ] = False,
    overlap: Annotated[
        float, typer.Option(help="How much the windows of a large image overlap, from 0 to 0.9.")
    ] = 0.25,
    batch_size: Annotated[int | None, typer.Option(help="Windows at a time; the training's if not given.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier prediction wrote to OUT.")
    ] = False,
    device: Device = "auto",
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Masks or classes for new images (PNG, JPEG, TIFF, NIfTI, DICOM).

    Masks have the image's own size, orientation and spacing; classes go to OUT/predictions.csv.

    For example:  harmofl predict runs/first/model new-patients/ --out predictions --overlay
    """
    from harmofl import api
    from harmofl.console import show_outcomes
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
            batch_size=batch_size,
            device=device,
            watch=watch,
            progress=False,
            overwrite=overwrite,
        )
    show_outcomes(outcomes, out)
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(1)


@app.command()
def adapt(
    model: Annotated[Path, typer.Argument(help="A model folder, such as runs/first/model.", metavar="MODEL_DIR")],
    data: Annotated[Path, typer.Option(help="The hospital's images; masks and labels beside them are not read.")],
    out: Annotated[Path, typer.Option("--out", help="The model folder to write.")],
    site: Annotated[str | None, typer.Option(help="Whose model to start from; else the one of all sites.")] = None,
    min_images: Annotated[
        int, typer.Option(min=2, help="Refuse fewer images: their statistics would be those of a few patients.")
    ] = 8,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Make a model for a hospital that took no part, from its unlabelled images.

    Batch norm statistics are estimated on them, in one pass; weights stay as they are.

    For example:  harmofl adapt runs/first/model --data our-images --out our-model
    """
    from harmofl import api
    from harmofl.console import show_adaptation
    from harmofl.displays import open_display

    with open_display(quiet) as watch:
        summary = api.adapt(
            model, data, out=out, site=site, min_images=min_images, device=device, watch=watch, progress=False
        )
    show_adaptation(summary, out)


data_app = typer.Typer(help="Look at a folder of images before training on it.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("check")
def data_check(
    task: Annotated[
        str, typer.Option(help="What would be learned: see `harmofl tasks`.", autocompletion=complete_task)
    ],
    data: Annotated[Path, typer.Option(help="The folder with the images.")],
    preset: Annotated[
        str | None,
        typer.Option(help="Whose settings: smoke, small (the default), paper.", autocompletion=complete_preset),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings from a TOML file, such as a run's config.toml.")] = None,
    assignments: Assignments = [],  # noqa: B006
    sheet: Annotated[
        Path, typer.Option(help="The picture to write: a row of images per site, with their masks or classes.")
    ] = Path("contact-sheet.png"),
    clean_manifest: Annotated[
        Path | None,
        typer.Option("--write-clean-manifest", help="Write a manifest of what can be used.", metavar="FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines, and write no picture.")] = False,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """What would be loaded, per site and split, and every problem, listed. Exit code 2 if training would fail.

    For example:  harmofl data check --task segmentation --data my-images
    """
    from harmofl import api
    from harmofl.console import show_check
    from harmofl.displays import open_display
    from harmofl.settings import parse_assignments

    settings = parse_assignments(assignments)
    with open_display(quiet or as_json) as watch:
        check, picture = api.check_data(
            task,
            data,
            preset=preset,
            config=config,
            settings=settings,
            sheet=None if as_json else sheet,
            clean_manifest=clean_manifest,
            watch=watch,
            progress=False,
        )
    show_check(check, picture, as_json, clean_manifest)
    if not check.ok:
        raise typer.Exit(2)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a model folder.", metavar="RUN_DIR")],
    file_format: Annotated[
        Literal["onnx", "torchscript"],
        typer.Option("--format", help="onnx needs an extra: pip install 'harmofl\\[onnx]'."),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write; RUN_DIR/export if not given.")] = None,
    site: Annotated[str | None, typer.Option(help="Whose model, where each site has its own (FedBN, local).")] = None,
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Write a finished model as one file that runs without harmofl, with a model card (MODEL.md) beside it.

    Raw images in [0, 1] go in, logits come out: the harmonizer is inside. The file is tried before it is kept.

    For example:  harmofl export runs/first --format onnx
    """
    from harmofl import api

    path = api.export(run, file_format, out=out, site=site)
    print(f"{path}\n{path.parent / 'MODEL.md'}")


@app.command()
def landscape(
    runs: Annotated[list[Path], typer.Argument(help="Finished runs on the same data.", metavar="RUN_DIR...")],
    out: Annotated[Path, typer.Option("--out", help="The folder for figures, tables and numbers.")],
    images: Annotated[int, typer.Option(min=0, help="Training images per site; 0: as many as there is time for.")] = 0,
    points: Annotated[
        int, typer.Option(min=0, help="Points along each axis of a plane, odd; 0: as many as there is time for.")
    ] = 0,
    local_epochs: Annotated[int, typer.Option(min=2, help="How long each site trains on from the model.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of images and directions; the same for all runs.")] = 0,
    device: Device = "auto",
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Draw the loss around the selected models of runs: contours, surfaces, the sites' own paths; measure sharpness.

    For example:  harmofl landscape runs/fedavg runs/harmofl --out landscape
    """
    from harmofl import api
    from harmofl.displays import open_display

    with open_display(quiet) as watch:
        api.landscape(
            runs,
            out=out,
            images=images,
            points=points,
            local_epochs=local_epochs,
            seed=seed,
            device=device,
            watch=watch,
            progress=False,
        )
    print((out / "landscape.md").read_text(encoding="utf-8"))
    print(f"Figures, tables and numbers: {out}")


@app.command()
def pictures(
    out: Annotated[Path, typer.Option("--out", help="The folder for figures, captions and numbers.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Finished runs on the same images, or an experiment.", metavar="DIR...")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="Whose images, if no run is named: see `harmofl tasks`.", autocompletion=complete_task),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder with the images; of runs, where their images lie now.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="smoke, small (the default), paper or paper-code.", autocompletion=complete_preset),
    ] = None,
    band: Annotated[
        list[str] | None, typer.Option(help="none, dc, full or a radius; may be given several times (dc and full).")
    ] = None,
    device: Device = "auto",
    assignments: Assignments = [],  # noqa: B006
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Draw images of every hospital before and after harmonization; or what runs make of test images chosen by a rule.

    No training needed:  harmofl pictures --task nuclei --out pictures

    Every method beside the truth:  harmofl pictures runs/table --out runs/table/pictures
    """
    from harmofl import api
    from harmofl.displays import open_display
    from harmofl.settings import parse_assignments

    settings = parse_assignments(assignments)
    with open_display(quiet) as watch:
        api.pictures(
            runs or [],
            out=out,
            task=task,
            data=data,
            preset=preset,
            bands=band,
            settings=settings,
            device=device,
            watch=watch,
            progress=False,
        )
    print((out / "pictures.md").read_text(encoding="utf-8"))
    print(f"Figures, captions and numbers: {out}")


@app.command()
def privacy(
    out: Annotated[Path, typer.Option("--out", help="The folder for numbers, pictures and a page.")],
    task: Annotated[
        str, typer.Option(help="Whose images: see `harmofl tasks`.", autocompletion=complete_task)
    ] = "histology",
    run: Annotated[
        Path | None, typer.Option(help="A finished run to attack, with its own task and images; else one is trained.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A folder of images, not the synthetic hospitals.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Images that gradient inversion is tried on.")] = None,
    restarts: Annotated[int | None, typer.Option(min=1, help="Starts of each gradient inversion.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Steps of each gradient inversion.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of images, starts and training.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds, to see that it works; the numbers mean nothing.")
    ] = False,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Attack what sites share: images from model updates, and from averaged amplitudes; about ten minutes.

    For example:  harmofl privacy --out privacy
    """
    from harmofl.displays import open_display
    from harmofl.experiments.privacy_study import privacy_study

    with open_display(quiet) as watch:
        privacy_study(
            out,
            task,
            images=images,
            restarts=restarts,
            iterations=iterations,
            seed=seed,
            run=run,
            data=data,
            quick=quick,
            watch=watch,
        )
    print((out / "privacy.md").read_text(encoding="utf-8"))
    print(f"Numbers, reconstructions and pictures: {out}")


app.add_typer(deploy_app, name="deploy")


@app.command()
def methods(plugins: PluginFiles = []) -> None:  # noqa: B006
    """List the methods, with paper, settings and defaults."""
    from harmofl.console import show_methods

    show_methods()


@app.command()
def tasks(plugins: PluginFiles = []) -> None:  # noqa: B006
    """List the tasks, with their sites, presets and every setting of a run."""
    from harmofl.console import show_tasks

    show_tasks()
