"""`harmofl data …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harmofl.cli.completion import complete_preset, complete_task
from harmofl.cli.options import Assignments, Config, Data, PluginFiles, Preset, Quiet, Task

data_app = typer.Typer(help="Look at a folder of images before training on it.", no_args_is_help=True)


@data_app.command("check")
def check(
    task: Annotated[
        str, typer.Option(help="What would be learned: see `harmofl tasks`.", autocompletion=complete_task)
    ],
    data: Annotated[Path, typer.Option(help="The folder with the images.")],
    preset: Annotated[
        str | None,
        typer.Option(help="Whose settings: smoke, small (the default), paper.", autocompletion=complete_preset),
    ] = None,
    config: Config = None,
    assignments: Assignments = [],  # noqa: B006
    sheet: Annotated[
        Path, typer.Option(help="The picture to write: one row of images per site, with their masks or classes.")
    ] = Path("contact-sheet.png"),
    clean_manifest: Annotated[
        Path | None,
        typer.Option("--write-clean-manifest", help="Write a manifest of what can be used.", metavar="FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines, and write no picture.")] = False,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Show what would be loaded, per site and split, and every problem. Exit code 2 if training would fail.

    For example:  harmofl data check --task segmentation --data my-images
    """
    from harmofl import api
    from harmofl.cli.tables import show_check
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


@data_app.command("compare")
def compare(
    task: Task = None,
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for a page with pictures, and its numbers.")
    ] = None,
    preset: Preset = None,
    config: Config = None,
    assignments: Assignments = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Show how hospitals differ, and advise on training: harmonize, keep statistics at the site, personalize.

    A folder:  harmofl data compare --task segmentation --data my-images --out comparison

    Synthetic hospitals:  harmofl data compare --task prostate --set data.shift=0
    """
    from harmofl import api
    from harmofl.cli.comparison_tables import show_comparison
    from harmofl.displays import open_display
    from harmofl.settings import parse_assignments

    with open_display(quiet or as_json) as watch:
        comparison = api.compare_data(
            task,
            data=data,
            out=out,
            preset=preset,
            config=config,
            settings=parse_assignments(assignments),
            watch=watch,
            progress=False,
        )
    show_comparison(comparison, as_json, out)
