"""Writes the Flower app: an ordinary project that `flwr run` takes."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from harmofl.deployment.app_options import AppOptions
from harmofl.deployment.papers import render
from harmofl.files import write_whole
from harmofl.version import __version__

PACKAGE = "harmofl_app"


def write_app(folder: Path, options: AppOptions) -> None:
    """Write the project's files into a folder."""
    words = {"name": options.name, "version": __version__, "runs": options.runs, "sites": options.sites}
    for name in ("pyproject.toml", "README.md"):
        write_whole(folder / name, render(f"flower/app/{name}", **words))
    write_whole(folder / PACKAGE / "__init__.py", '"""Federated training with harmofl."""\n')
    for name in ("server_app.py", "client_app.py"):
        write_whole(folder / PACKAGE / name, render(f"flower/app/{name}"))
    write_whole(folder / PACKAGE / "run.toml", tomli_w.dumps(options.settings))
