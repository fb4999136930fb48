"""A trained model as one folder: `model.safetensors` and `model.json`, harmonizer included."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.documents import read_json
from harmofl.errors import UsageError, unknown_name
from harmofl.files import write_whole
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.settings import Settings, resolve
from harmofl.states import snapshot
from harmofl.tasks.task import Task
from harmofl.version import __version__

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
REQUIRED = ("task", "title", "kind", "network", "input", "classes", "sites", "synthetic", "settings")
"""What a description holds at least."""


def write_model(
    folder: Path,
    model: Model,
    task: Task,
    settings: Settings,
    facts: DataFacts,
    sites: Sequence[str],
    best_round: int | None,
) -> None:
    """Write a model; `model.json` comes last, so that a folder with it is complete."""
    checksum = write_weights(folder, model)
    describe_model(folder, task, settings, facts, sites, best_round, checksum)


def write_weights(folder: Path, model: Model) -> str:
    """Write `model.safetensors`; return its SHA-256, for `model.json`."""
    content = save(snapshot(model))
    write_whole(folder / WEIGHTS, content)
    return hashlib.sha256(content).hexdigest()


def describe_model(
    folder: Path,
    task: Task,
    settings: Settings,
    facts: DataFacts,
    sites: Sequence[str],
    best_round: int | None,
    checksum: str = "",
) -> None:
    """Write `model.json`; without weights beside it, each site's own model lies in `sites/NAME/`."""
    channels, *size = task.image_shape(settings.data)
    names = ("depth", "height", "width")[-len(size) :]
    description = {
        "task": task.name,
        "title": task.title,
        "kind": task.kind,
        "network": settings_to_share(settings)["model"],
        "input": {"channels": channels, **dict(zip(names, size, strict=True)), "range": [0, 1]},
        "classes": list(task.classes_of(settings.data)),
        "sites": list(sites),
        "best_round": best_round,
        "synthetic": facts.synthetic,
        "trained_on": {"sites": list(facts.sites), "fingerprints": list(facts.fingerprints)},
        "training_images": facts.looks,
        "settings": settings_to_share(settings),
        "plugins": [Path(file).name for file in settings.plugins.files],
        "version": __version__,
        **({"sha256": checksum} if checksum else {}),
    }
    write_whole(folder / "model.json", json.dumps(description, indent=2) + "\n")


def settings_to_share(settings: Settings) -> dict[str, Any]:
    """The settings without paths of the machine that trained, as a model folder is made to be handed on."""
    values = settings.to_tree()
    own = ("folder", "cache")
    values["data"] = {name: value for name, value in values["data"].items() if name not in own}
    values["model"] = {name: value for name, value in values["model"].items() if name != "initial"}
    del values["plugins"]
    return values


def find_model_folder(folder: Path) -> Path:
    """The model's folder, also where its run's folder is given."""
    is_run = not (folder / "model.json").exists() and (folder / "model" / "model.json").exists()
    return folder / "model" if is_run else folder


def read_description(folder: Path) -> dict[str, Any]:
    """Read `model.json`, or raise an error that says why this is not a model folder."""
    path = folder / "model.json"
    try:
        description: dict[str, Any] = read_json(path)
    except FileNotFoundError:
        raise UsageError(f"{folder}: not a model folder (no model.json)") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if not isinstance(description, dict):
        raise UsageError(f"{path}: not the description of a model")
    if missing := [name for name in REQUIRED if name not in description]:
        raise UsageError(f"{path} lacks {', '.join(missing)}")
    if not isinstance(description["settings"], dict) or "data" not in description["settings"]:
        raise UsageError(f"{path}: settings must be those of a run")
    return description


class TrainedModel(NamedTuple):
    """A model in eval mode, and what it was trained with."""

    model: Model
    task: Task
    settings: Settings
    method: Method


def open_model(folder: Path, site: str | None = None, method: Method | None = None) -> TrainedModel:
    """Rebuild a model from its folder.

    `site`: whose, where each site has its own. `method`: the one it was trained with, if it is not registered.
    """
    description = read_description(folder)
    folder = _folder_of_site(folder, description, site)
    try:
        task = registry.tasks.find(str(description["task"]))
        settings, method = resolve(method=method, file=description["settings"])
    except UsageError as error:
        hint = _plugin_hint(description) if str(error).startswith("unknown") else ""
        raise UsageError(f"{folder}: {error}{hint}") from None
    model = task.build_model(settings, method)
    path = folder / WEIGHTS
    try:
        content = path.read_bytes()
        weights = load(content)
        check_weights(path, content)
        model.load_state_dict(weights)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except RuntimeError as error:
        misfit = first_misfit(error)
        raise UsageError(f"{path}: does not fit model.json: {misfit}{_version_hint(description)}") from None
    return TrainedModel(model.eval(), task, settings, method)


def check_weights(path: Path, content: bytes) -> None:
    """Raise an error if weights are not those that the `model.json` beside them was written with."""
    described = (path.parent / "model.json").exists()
    checksum = read_description(path.parent).get("sha256") if described else None
    if checksum not in (None, hashlib.sha256(content).hexdigest()):
        raise UsageError(f"{path}: damaged, or not the weights of its model.json: the checksums differ")


def _plugin_hint(description: Mapping[str, Any]) -> str:
    """Where something unknown may come from: a model folder never runs code by itself."""
    files = [str(name) for name in description.get("plugins", [])]
    named = f"the model was trained with {', '.join(files)}: " if files else "if it is your own, "
    return f"; {named}load its file first, with --plugin or harmofl.load_plugin"


def _version_hint(description: Mapping[str, Any]) -> str:
    """Networks may change between versions: the U-Net did after 0.1."""
    written_by = description.get("version", __version__)
    return "" if written_by == __version__ else f" (written by harmofl {written_by}; this is {__version__})"


def has_one_model(folder: Path) -> bool:
    """Whether every site has the same model."""
    return (folder / "model.safetensors").exists()


def score_name(folder: Path) -> str:
    """The name of the score by which a model was selected."""
    description = read_description(folder)
    chosen = description["settings"].get("training", {}).get("score")
    return str(chosen or registry.tasks.find(str(description["task"])).main_score)


def first_misfit(error: RuntimeError) -> str:
    """The first of the entries that do not fit; PyTorch lists all of them, one a line after a heading."""
    return str(error).splitlines()[-1 if "\n" not in str(error) else 1].strip()


def _folder_of_site(folder: Path, description: dict[str, Any], site: str | None) -> Path:
    if site is not None and site not in description["sites"]:
        raise unknown_name("site", site, description["sites"])
    if has_one_model(folder):
        return folder
    if site is None:
        sites = ", ".join(description["sites"])
        raise UsageError(
            f"{folder} holds one model per site: choose one with site (--site): {sites}; for a hospital that took no "
            "part, `harmofl adapt` makes one from its unlabelled images"
        )
    own = folder / "sites" / site
    if not own.is_dir():
        raise UsageError(
            f"{folder}: the model of {site} is not here. In a federation of machines each hospital has its own, in "
            "models/ of its folder: take one of those"
        )
    return own


def start_from(network: nn.Module, folder: Path) -> None:
    """Copy the weights of a model folder into a network of the same shape."""
    model = open_model(folder).model
    try:
        network.load_state_dict(snapshot(model.network))
    except RuntimeError as error:
        raise UsageError(f"model.initial = {str(folder)!r}: does not fit: {first_misfit(error)}") from None
