"""`harmofl demo`, `train`, `experiment` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harmofl.cli.completion import complete_device, complete_plan
from harmofl.cli.loggers import Log, LogTo, open_loggers
from harmofl.cli.options import Assignments, Config, Data, Method, PluginFiles, Preset, Quiet, Resume, Seed, Task


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder for the runs and the page.")] = Path("harmofl-demo"),
    quiet: Quiet = False,
) -> None:
    """Compare FedAvg, HarmoFL and FreshBN, which we recommend, on five synthetic hospitals: a table and a page.

    Run it again to continue where it stopped, or to see the results again.
    """
    from harmofl.cli.interrupts import interruptible
    from harmofl.cli.tables import show_table
    from harmofl.displays import open_display
    from harmofl.experiments.demo import run_demo

    with interruptible(lambda: "run the same command again to continue"), open_display(quiet) as watch:
        runs, page = run_demo(out, watch)
    show_table(runs)
    print(f"\nThe whole story, with pictures: {page}")


def train(
    out: Annotated[Path, typer.Option("--out", help="The folder to write; it must not hold a run yet.")],
    task: Task = None,
    method: Method = None,
    data: Data = None,
    preset: Preset = None,
    config: Config = None,
    assignments: Assignments = [],  # noqa: B006
    seed: Seed = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Parallel processes (0: one per core). Results do not depend on it."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto (CUDA if there is one), cpu or cuda.", autocompletion=complete_device),
    ] = None,
    resume: Resume = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Measure where the time goes: a table, and OUT/profile.json for trace viewers."),
    ] = False,
    log: Log = [],  # noqa: B006
    log_to: LogTo = None,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Train one method on one task.

    On synthetic hospitals:  harmofl train --task nuclei --method harmofl --set method.radius=0.1 --out runs/first

    On your own images:  harmofl train --task segmentation --method harmofl --data my-images --out runs/ours

    A run that was stopped:  harmofl train --out runs/ours --resume
    """
    from harmofl import api
    from harmofl.cli.interrupts import how_to_resume, interruptible
    from harmofl.cli.profile_table import show_profile
    from harmofl.cli.tables import show_summary
    from harmofl.displays import open_display
    from harmofl.settings import parse_assignments

    settings = parse_assignments(assignments)
    with (
        interruptible(lambda: how_to_resume(out)),
        open_display(quiet) as watch,
        open_loggers(log, out, log_to) as loggers,
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
            profile=profile,
            watch=loggers.beside(watch),
            progress=False,
        )
        loggers.keep_files(out)
    show_summary(summary, out)
    if profile:
        show_profile(out)


def experiment(
    plan: Annotated[
        Path,
        typer.Argument(
            help="What to run: a file, or the name of a plan that comes with harmofl, such as table-nuclei.",
            autocompletion=complete_plan,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write: one run folder per cell, and the tables.")],
    data: Data = None,
    preset: Preset = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Parallel cells; one per core if not given.")] = None,
    resume: Resume = False,
    keep: Annotated[
        Path | None,
        typer.Option(help="Also keep a summary of finished cells here; cells that are kept here are not run again."),
    ] = None,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Run a grid of methods, variations and seeds; write tables with a test of every difference.

    A finished cell is never run again, a failed one does not stop the others, and --resume continues after a kill.

    For example:  harmofl experiment ablation-nuclei --preset smoke --out runs/ablation
    """
    from harmofl.cli.interrupts import interruptible
    from harmofl.cli.tables import show_results
    from harmofl.displays import open_display
    from harmofl.experiments.report import write_report
    from harmofl.experiments.runner import run_experiment

    how_to_continue = "run the same command with --resume to continue"
    with interruptible(lambda: how_to_continue), open_display(quiet) as watch:
        results = run_experiment(plan, out, data, preset, jobs, resume, keep, watch)
    show_results(results, out)
    if results.runs:
        print(f"Tables and figures on one page: {write_report(out)}")
    if results.missing:
        raise typer.Exit(1)


def report(
    folder: Annotated[
        Path, typer.Argument(help="A run's folder, a folder of runs, or an experiment's folder.", metavar="DIR")
    ],
    reference: Annotated[
        str | None,
        typer.Option(help="The row that all others are compared with; the plan's own if not given."),
    ] = None,
) -> None:
    """Write DIR/report.html, from records alone: one page that opens offline.

    For example:  harmofl report runs/first
    """
    from harmofl.experiments.report import write_report

    print(write_report(folder, reference))
