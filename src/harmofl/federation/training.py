"""Training from the settings that a user gives to the summary of the finished run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.devices import check_device, choose_device, threads
from harmofl.displays.profiling import recording
from harmofl.errors import DiskError, RunError, UsageError
from harmofl.events import Watch, Watchers, ignore
from harmofl.federation.filters.chain import Filters
from harmofl.federation.method_checks import check_participation, check_pieces, check_server_rule, check_sharing
from harmofl.federation.numerics import check_compiler
from harmofl.federation.participation import Participation
from harmofl.federation.privacy import check_privacy
from harmofl.federation.secure.refusals import check_secure_aggregation
from harmofl.federation.server import Server
from harmofl.federation.simulation import num_workers, obstacle_to_workers, simulate
from harmofl.federation.transports import Transport
from harmofl.methods.method import Method
from harmofl.plugins import load_plugins, plugins_in
from harmofl.runs.folder import Record, RunFolder
from harmofl.runs.live_file import LiveFile
from harmofl.runs.model_folder import read_description, start_from
from harmofl.settings import Settings, nest, read_toml, resolve
from harmofl.settings.schema import AT_THE_SITES
from harmofl.tasks.data_facts import open_images
from harmofl.tasks.task import Source


def train(
    task: str | None = None,
    method: str | Method | None = None,
    *,
    out: str | Path,
    data: str | Path | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    seed: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    watch: Watch = ignore,
    trained: Path | None = None,
    profile: bool = False,
) -> Record:
    """Train one method on one task and return the summary; everything else lies in the folder `out`.

    `settings` are single settings as {"section.name": value}. With no data the task's phantom is used. A run that is
    resumed needs nothing but its folder. `trained`: a folder in which sites leave and find what rounds of training
    gave. `profile`: write where the time goes.
    """
    if resume and config is None:
        RunFolder(Path(out)).check_start(resume)
        config = RunFolder(Path(out)).config
    overrides = dict(settings or {})
    folder = None if data is None else str(data)
    given = {"seed": seed, "federation.workers": workers, "device": device, "data.folder": folder}
    overrides |= {name: value for name, value in given.items() if value is not None}
    file = read_toml(Path(config)) if config else {}
    load_plugins([*plugins_in(file), *plugins_in(nest(overrides))])
    resolved, chosen = resolve(task, method, preset, file, overrides)
    if resolved.data.folder not in (None, AT_THE_SITES):
        resolved = resolved.with_values("data", folder=os.path.abspath(str(resolved.data.folder)))
    check_start(resolved, Path(out), resume)
    images = open_images(resolved, watch)
    return run_federation(
        resolved, images.facts, chosen, Path(out), resume, watch, source=images.source, trained=trained, profile=profile
    )


def check_start(settings: Settings, out: Path, resume: bool) -> None:
    """Raise the errors that need no look at the images, which may take minutes."""
    check_device(settings.device)
    check_compiler(settings.training, choose_device(settings.device))
    folder = RunFolder(out)
    folder.check_start(resume)
    if resume:
        folder.check_free()
    if settings.model.initial:
        read_description(Path(settings.model.initial))


def run_federation(
    chosen: Settings,
    facts: DataFacts,
    method: Method,
    out: Path,
    resume: bool,
    watch: Watch,
    transport: AbstractContextManager[Transport] | None = None,
    source: Source | None = None,
    trained: Path | None = None,
    profile: bool = False,
) -> Record:
    """Run a federation in a folder, from its start or from its last checkpoint; with no transport it is simulated.

    `source`: the images, if they are open already.
    """
    settings = facts.complete(chosen)
    check_device(settings.device)
    if transport is None:
        _check_method_travels(method, settings)
    task = registry.tasks.find(settings.task)
    model = task.build_model(settings, method)
    check_pieces(method, model)
    check_sharing(method, model, settings)
    check_server_rule(method, settings)
    check_participation(method, settings)
    check_privacy(settings, method, model)
    Filters.chosen(settings, method, model)  # an error if one does not fit
    sites_asked = Participation.of(settings).asked(task.participants(method, settings.data), 1)
    check_secure_aggregation(method, model, settings, len(sites_asked))
    if settings.model.initial:  # before the folder is claimed: a wrong one leaves nothing behind
        start_from(model.network, Path(settings.model.initial))
    folder = RunFolder(out)
    identifier = folder.begin(chosen, facts, resume)
    try:
        if resume and folder.summary.exists():
            return folder.read_summary()
        reached = transport or simulate(settings, method, out, source, trained)
        watch = Watchers((watch, LiveFile(folder.live)))
        measuring = recording(folder.profile_parts, folder.profile) if profile else nullcontext()
        with measuring, threads(settings.federation.threads), reached as sites:
            return Server(task, method, settings, sites, folder, identifier, watch, source).run()
    except (OSError, DiskError) as error:
        cause = (isinstance(error, OSError) and error.strerror) or error
        folder.fail(str(cause))
        kept = "what was written before is kept: fix the cause and continue with --resume"
        raise RunError(f"{out}: {cause}; {kept}") from error
    except Exception as error:
        folder.fail(str(error) if isinstance(error, (RunError, UsageError)) else f"{type(error).__name__}: {error}")
        raise
    finally:
        folder.release()


def _check_method_travels(method: Method, settings: Settings) -> None:
    """Raise an error if a method cannot be sent to worker processes."""
    if num_workers(settings, method) > 1 and (reason := obstacle_to_workers(method)):
        hint = "it and what is registered must be defined at the top of a file (no lambda), or use workers=1"
        raise UsageError(f"{method.name} cannot be sent to worker processes: {hint} ({reason})")
