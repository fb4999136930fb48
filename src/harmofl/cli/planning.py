"""`harmofl plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harmofl.cli.options import Assignments, Config, Data, PluginFiles, Preset, Quiet, Task


def plan(
    out: Annotated[Path, typer.Option("--out", help="The folder for plan.md and plan.toml.")],
    task: Task = None,
    data: Data = None,
    preset: Preset = None,
    config: Config = None,
    assignments: Assignments = [],  # noqa: B006
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Plan a training from the images of all hospitals: size, spacing, patch, batch, network, augmentation, method.

    A folder:  harmofl plan --task segmentation --data my-images --set data.dimensions=3 --out plan

    Then:  harmofl train --config plan/plan.toml --out runs/planned
    """
    from harmofl import api
    from harmofl.displays import open_display
    from harmofl.settings import parse_assignments

    with open_display(quiet) as watch:
        api.plan(
            task,
            out=out,
            data=data,
            preset=preset,
            config=config,
            settings=parse_assignments(assignments),
            watch=watch,
            progress=False,
        )
    print((out / "plan.md").read_text(encoding="utf-8"))
    print(f"Written: {out / 'plan.md'}, {out / 'plan.toml'}")
