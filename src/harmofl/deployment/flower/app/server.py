"""The server's side of the app: the rounds of `harmofl train`, over the messages of somebody's SuperLink."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from harmofl.deployment.coordinator import audited, check_run, read_options, run_over
from harmofl.deployment.flower.app.roster import Roster
from harmofl.deployment.flower.exchange import FlowerTransport
from harmofl.deployment.flower.mailbox import Mailbox
from harmofl.deployment.logs import log_to_stdout
from harmofl.deployment.provisioning import check_name, parse_sites
from harmofl.displays import open_display
from harmofl.errors import UsageError
from harmofl.files import claimed
from harmofl.runs.folder import Record
from harmofl.settings import parse_assignments

RUN_CONFIG = {"run": str, "runs": str, "sites": str, "resume": bool, "set": str, "wait": (int, float)}
"""What `flwr run --run-config` may change, with its type."""


def train(grid: Grid, run_config: Mapping[str, Any], settings: Path) -> Record:
    """Train one model with the sites; the run's folder is on this machine, where the SuperLink runs.

    `settings`: the file that came with the app.
    """
    log_to_stdout()
    values = read_run_config(run_config)
    sites, runs = parse_sites(values["sites"]), Path(values["runs"]).expanduser()
    if not runs.is_absolute():
        raise UsageError(f"runs = {values['runs']!r}: must be a folder's whole path, or begin with ~")
    check_name(values["run"])
    out, resume = runs / values["run"], values["resume"]
    given = parse_assignments(shlex.split(values["set"]))
    options = read_options(None, None, None, None if resume else settings, given, resumed=out if resume else None)
    check_run(options, out, resume)
    runs.mkdir(parents=True, exist_ok=True)
    transport = FlowerTransport(Roster(Mailbox(grid), sites), {site: site for site in sites})
    busy = f"{runs}: another run of these sites is going on"
    with claimed(runs / ".run.lock", busy), open_display() as watch:
        watched = audited(runs, transport, "flwr run", f"started: {out}")
        return run_over(watched, sites, options, out, resume, values["wait"], watch)


def read_run_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The app's own values of a run's configuration, each of its type."""
    for name, kind in RUN_CONFIG.items():
        found = values.get(name)
        if not isinstance(found, kind):  # type: ignore[arg-type]
            raise UsageError(f"run-config {name} = {found!r}: must be {kind}")
    return {name: values[name] for name in RUN_CONFIG}
