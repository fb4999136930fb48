"""A run as an app or job of an engine that others provisioned and operate: written once, started by their tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from harmofl.deployment.app_options import AppOptions
from harmofl.deployment.coordinator import RunOptions
from harmofl.deployment.engine import find_engine
from harmofl.deployment.provisioning import whole_folder
from harmofl.errors import UsageError
from harmofl.settings import Tree, flatten, nest

APP_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")


def settings_file(options: RunOptions) -> Tree:
    """What is to be trained, as one settings file; raises the errors that a run would raise."""
    options.check()
    options.resolve(synthetic=False)
    named = {"task": options.task, "method.name": options.method, "preset": options.preset}
    values = flatten(options.file) | dict(options.given)
    return nest(values | {name: value for name, value in named.items() if value is not None})


def write_app(engine: str, options: RunOptions, sites: Sequence[str], runs: str, name: str, out: Path) -> None:
    """Write an app for somebody's own federation into a new folder, or nothing."""
    found = find_engine(engine)
    if found.write_app is None:
        raise UsageError(f"--engine {engine}: it has no apps")
    if not APP_NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: must be lower-case letters, digits and dashes, the first a letter")
    app = AppOptions(settings_file(options), sites, runs, name)
    with whole_folder(out) as folder:
        found.write_app(folder, app)
