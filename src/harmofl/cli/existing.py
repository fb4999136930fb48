"""`harmofl deploy app` and `job`: a run for a federation that others provisioned and started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harmofl.cli.completion import complete_engine
from harmofl.cli.options import Assignments, Method, PluginFiles, Preset, Seed, Task

if TYPE_CHECKING:
    from harmofl.deployment.coordinator import RunOptions

RUNS = "~/harmofl-runs"
"""Where an engine whose server has no place of its own for runs keeps them."""

Sites = Annotated[str, typer.Option(help="The hospitals' names, as in their site.toml, with commas.", metavar="A,B,C")]
Out = Annotated[Path, typer.Option("--out", help="The folder to make; it must not exist, or be empty.")]
Config = Annotated[Path | None, typer.Option(help="What to train: a TOML file.")]


def app(
    engine: Annotated[
        str, typer.Option(help="What is already running: flower.", metavar="ENGINE", autocompletion=complete_engine)
    ],
    sites: Sites,
    out: Out,
    config: Config = None,
    task: Task = None,
    method: Method = None,
    preset: Preset = None,
    assignments: Assignments = [],  # noqa: B006
    seed: Seed = None,
    runs: Annotated[str, typer.Option(help="Where run folders are, on the server's machine.")] = RUNS,
    name: Annotated[str, typer.Option(help="The app's name.")] = "harmofl-app",
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Write an app for a federation that is already running; its own tools start it: for Flower, `flwr run`.

    For example:  harmofl deploy app --engine flower --sites A,B,C --task segmentation --method harmofl --out app

    Then:  flwr run app SUPERLINK
    """
    from harmofl.deployment.coordinator import read_options

    options = read_options(task, method, preset, config, _given(assignments, seed))
    _write(engine, options, sites, runs, name, out)
    print(f"{out}: what it needs and how to start it is in {out / 'README.md'}")


def job(
    engine: Annotated[
        str, typer.Option(help="What is already running: nvflare.", metavar="ENGINE", autocompletion=complete_engine)
    ],
    sites: Sites,
    out: Out,
    config: Config = None,
    task: Task = None,
    method: Method = None,
    preset: Preset = None,
    assignments: Assignments = [],  # noqa: B006
    seed: Seed = None,
    name: Annotated[str, typer.Option(help="The run's name: a job of the same name continues it.")] = "harmofl-job",
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Write a job for an NVIDIA FLARE federation that is already running; `nvflare job submit` starts it.

    For example:  harmofl deploy job --engine nvflare --sites A,B,C --task prostate --method harmofl --out job

    Then:  nvflare job submit -j job
    """
    from harmofl.deployment.coordinator import read_options

    options = read_options(task, method, preset, config, _given(assignments, seed))
    _write(engine, options, sites, RUNS, name, out)
    print(f"{out}: submit it with `nvflare job submit -j {out}`, or with submit_job in the admin console")


def _given(assignments: list[str], seed: int | None) -> dict[str, Any]:
    """The settings that the command line names."""
    from harmofl.settings import parse_assignments

    return parse_assignments(assignments) | ({} if seed is None else {"seed": seed})


def _write(engine: str, options: RunOptions, sites: str, runs: str, name: str, out: Path) -> None:
    from harmofl.deployment.existing import write_app
    from harmofl.deployment.provisioning import parse_sites

    write_app(engine, options, parse_sites(sites), runs, name, out)
