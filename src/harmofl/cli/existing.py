"""`harmofl deploy job`: a run for a federation that others provisioned and started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harmofl.cli.completion import complete_engine
from harmofl.cli.options import Assignments, Method, PluginFiles, Preset, Seed, Task

RUNS = "~/harmofl-runs"
"""Where an engine whose server has no place of its own for runs keeps them."""


def job(
    engine: Annotated[
        str,
        typer.Option(help="What runs already: nvflare.", metavar="ENGINE", autocompletion=complete_engine),
    ],
    sites: Annotated[
        str, typer.Option(help="The hospitals' names, as in their site.toml, with commas.", metavar="A,B,C")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to make; it must not exist, or be empty.")],
    config: Annotated[Path | None, typer.Option(help="What to train: a TOML file.")] = None,
    task: Task = None,
    method: Method = None,
    preset: Preset = None,
    assignments: Assignments = [],  # noqa: B006
    seed: Seed = None,
    name: Annotated[str, typer.Option(help="The run's name: a job of the same name goes on with it.")] = "harmofl-job",
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Write a job for a federation of NVIDIA FLARE that runs already, which `nvflare job submit` starts.

    For example:  harmofl deploy job --engine nvflare --sites A,B,C --task prostate --method harmofl --out job

    Then:  nvflare job submit -j job
    """
    from harmofl.deployment.coordinator import read_options
    from harmofl.deployment.existing import write_app
    from harmofl.deployment.provisioning import parse_sites
    from harmofl.settings import parse_assignments

    given = parse_assignments(assignments) | ({} if seed is None else {"seed": seed})
    options = read_options(task, method, preset, config, given)
    write_app(engine, options, parse_sites(sites), RUNS, name, out)
    print(f"{out}: submit it with `nvflare job submit -j {out}`, or with submit_job in the admin console")
