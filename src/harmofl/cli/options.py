"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harmofl.cli.completion import complete_device, complete_method, complete_preset, complete_setting, complete_task
from harmofl.plugins import load_plugins


def _load(files: list[Path]) -> list[Path]:
    load_plugins(files)
    return files


Task = Annotated[
    str | None, typer.Option("--task", help="What is learned: see `harmofl tasks`.", autocompletion=complete_task)
]
Method = Annotated[
    str | None,
    typer.Option("--method", help="How it is learned: see `harmofl methods`.", autocompletion=complete_method),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="smoke (seconds), small (minutes on two cores, the default), paper or paper-code.",
        autocompletion=complete_preset,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="The folder with the images; without it, the task's synthetic hospitals."),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="Settings from a TOML file, such as a run's config.toml.")
]
Assignments = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="NAME=VALUE",  # longer, it would leave no room for long options in 80 columns
        help="One setting, as section.name=value; may be given several times.",
        autocompletion=complete_setting,
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Changes initialization and order, never the data.")]
Device = Annotated[str, typer.Option(help="auto (CUDA if there is one), cpu or cuda.", autocompletion=complete_device)]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what is in --out.")]
ModelFolder = Annotated[Path, typer.Argument(help="A model folder, such as runs/first/model.", metavar="MODEL_DIR")]
Site = Annotated[
    str | None, typer.Option("--site", help="Whose model, if each site has its own (FreshBN, FedBN, local).")
]
PluginFiles = Annotated[
    list[Path],
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="A Python file that registers your own methods, networks or tasks; may be given several times.",
        callback=_load,
    ),
]

Quiet = Annotated[bool, typer.Option("--quiet", help="Print results, warnings and errors only.")]
