"""The Python calls that the commands make too."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from harmofl.errors import RunError, UsageError
from harmofl.federation.client import score
from harmofl.federation.records import Record, RunFolder
from harmofl.federation.server import Server, start_from
from harmofl.federation.transports import num_workers, simulated, threads
from harmofl.inference.folder import open_model
from harmofl.methods.method import Method
from harmofl.settings import Settings, merged, read_toml, resolve, tree_of
from harmofl.states import evaluating
from harmofl.tasks import find as find_task
from harmofl.tasks.scores import Scores

Watch = Callable[[Record], None]


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
    watch: Watch = lambda record: None,
) -> Record:
    """Train one method on one task and return the summary; everything else lies in the folder `out`.

    `settings` are single settings as {"section.name": value}. With no data the task's phantom is used.
    """
    refuse_data(data)
    overrides = dict(settings or {})
    for name, value in (("seed", seed), ("federation.workers", workers), ("device", device)):
        if value is not None:
            overrides[name] = value
    file = read_toml(Path(config)) if config else {}
    resolved, chosen = resolve(task, method, preset, file, overrides)
    return run(resolved, chosen, Path(out), resume, watch)


def run(settings: Settings, method: Method, out: Path, resume: bool, watch: Watch) -> Record:
    """Run a federation of simulated sites in a folder, from its start or from its last checkpoint."""
    check_device(settings.device)
    check_method_travels(method, settings)
    task = find_task(settings.task)
    if settings.model.initial:  # before the folder is claimed: a wrong one leaves nothing behind
        start_from(task.build_model(settings, method).network, Path(settings.model.initial))
    folder = RunFolder(out)
    identifier = folder.begin(settings, resume)
    try:
        if resume and folder.summary.exists():
            return folder.read_summary()
        with threads(settings.federation.threads), simulated(settings, method, out) as transport:
            return Server(task, method, settings, transport, folder, identifier, watch).run()
    except OSError as error:
        raise RunError(f"{out}: {error.strerror or error}; what was written before is kept") from error
    finally:
        folder.release()


def load_model(folder: str | Path, site: str | None = None, method: Method | None = None) -> nn.Module:
    """A trained model in eval mode, harmonizer included: raw images (N, C, H, W) in [0, 1] in, logits out.

    `site`: whose model, where each site has its own. `method`: the one it was trained with, if it is your own and
    not registered.
    """
    return open_model(Path(folder), site, method)[0]


def evaluate(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    site: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Scores]:
    """Score a finished model on the test images of every site of its task's phantom, changed as `settings` say."""
    refuse_data(data)
    model, task, trained, method = open_model(Path(folder), site)
    tree = merged(trained.model_dump(mode="json", exclude_none=True), tree_of(settings or {}))
    changed, _ = resolve(method=method, file=tree)
    others = [name for name in settings or {} if not name.startswith("data.")]
    if others:
        raise UsageError(f"{', '.join(others)}: only data settings can be changed for an evaluation")
    if changed.data.size != trained.data.size:
        raise UsageError(f"data.size = {changed.data.size}: this model takes images of {trained.data.size} pixels")
    size = changed.training.batch_size
    with threads(changed.federation.threads), evaluating(model):
        return {
            name: score(model, task, task.load_site(name, changed.data).test[name], size, thorough=True)
            for name in task.sites
        }


def refuse_data(data: str | Path | None) -> None:
    """Say that folders of images are not read yet, rather than train on something else."""
    if data is not None:
        raise UsageError(f"--data {data}: this version knows synthetic hospitals only; leave out --data")


def check_method_travels(method: Method, settings: Settings) -> None:
    """Refuse a method that cannot reach the worker processes."""
    if num_workers(settings, method) > 1:
        try:
            pickle.dumps(method)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            hint = "its pieces must be defined at the top of a file (no lambda), or use workers=1"
            raise UsageError(f"{method.name} cannot be sent to worker processes: {hint} ({error})") from None


def check_device(device: str) -> None:
    """Refuse CUDA where there is none."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device = 'cuda': no CUDA device here; use 'cpu' or 'auto'")
