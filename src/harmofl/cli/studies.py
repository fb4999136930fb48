"""`harmofl landscape`, `pictures` and `privacy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harmofl.cli.completion import complete_task
from harmofl.cli.options import Assignments, Device, PluginFiles, Preset, Quiet
from harmofl.errors import UsageError


def landscape(
    runs: Annotated[list[Path], typer.Argument(help="Finished runs on the same data.", metavar="RUN_DIR...")],
    out: Annotated[Path, typer.Option("--out", help="The folder for figures, tables and numbers.")],
    images: Annotated[int, typer.Option(min=0, help="Training images per site; 0: as many as there is time for.")] = 0,
    points: Annotated[
        int, typer.Option(min=0, help="Points along each axis of a plane, odd; 0: as many as there is time for.")
    ] = 0,
    local_epochs: Annotated[int, typer.Option(min=2, help="How long each site trains from the model.")] = 3,
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
        Path | None, typer.Option(help="The folder with the images; for runs, where their images are now.")
    ] = None,
    preset: Preset = None,
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


def privacy(
    out: Annotated[Path, typer.Option("--out", help="The folder for numbers, pictures and a page.")],
    task: Annotated[
        str, typer.Option(help="Whose images: see `harmofl tasks`.", autocompletion=complete_task)
    ] = "histology",
    run: Annotated[
        Path | None,
        typer.Option(help="A finished run to attack, with its own task and images; if not given, one is trained."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A folder of images; without it, the synthetic hospitals.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Images that gradient inversion is tried on.")] = None,
    restarts: Annotated[int | None, typer.Option(min=1, help="Starts of each gradient inversion.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Steps of each gradient inversion.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of images, starts and training.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take seconds, to see that it works; the numbers mean nothing.")
    ] = False,
    crafted: Annotated[
        bool,
        typer.Option("--crafted", help="Only the attack by a server that crafts weights; a minute, without training."),
    ] = False,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Attack what sites share: recover images from model updates and from averaged amplitudes, in about ten minutes.

    For example:  harmofl privacy --out privacy
    """
    from harmofl.displays import open_display
    from harmofl.experiments.privacy_study import crafted_study, privacy_study

    if crafted:
        if data:
            raise UsageError(f"--data {data}: with --crafted, give a run on these images by --run")
        with open_display(quiet) as watch:
            crafted_study(out, task, seed=seed, run=run, quick=quick, watch=watch)
        print((out / "crafted.md").read_text(encoding="utf-8"))
        return
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
