"""Scores of a finished model on labelled images, at hospitals that took part and at others."""

from __future__ import annotations

import logging
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from harmofl import registry
from harmofl.data.folder import ImageFolder, Watch, silent
from harmofl.data.images import ImageSet
from harmofl.data.looks import looks_in, strange_ones
from harmofl.data.samples import SPLITS
from harmofl.devices import choose_device, threads, to_device
from harmofl.errors import UsageError
from harmofl.methods.method import Method
from harmofl.models.network import Model
from harmofl.runs.model_folder import is_whole, open_model, read_description
from harmofl.settings import Settings, merge, nest, resolve
from harmofl.states import evaluating, snapshot
from harmofl.tasks.scorers import Scores
from harmofl.tasks.scoring import score
from harmofl.tasks.task import Source, Task

CHOICES = ("auto", *SPLITS, "all")
logger = logging.getLogger(__name__)

RE_ESTIMATED = "statistics re-estimated on its own unlabelled images, with the sites' mean batch norm weights"
MEAN_OF_MODELS = "mean of the scores of the sites' models"
NAME_A_PART = "name a part with --split: all, test, val or train"


@dataclass(frozen=True)
class Candidates:
    """The models that can be asked about a hospital's images, and how they came to be."""

    models: tuple[Model, ...]
    note: str = ""


def evaluate_model(
    folder: Path,
    data: str | Path | None = None,
    site: str | None = None,
    changes: Mapping[str, Any] | None = None,
    split: str = "auto",
    device: str = "auto",
    watch: Watch = silent,
) -> dict[str, Scores]:
    """Scores per site of a folder, or of the phantom that the model was trained on."""
    if split not in CHOICES:
        raise UsageError(f"split = {split!r}: must be one of {', '.join(CHOICES)}")
    description = read_description(folder)
    settings = settings_for(folder, description, data, dict(changes or {}))
    task, trained = registry.tasks.find(settings.task), Trained.of(description)
    results = {}
    with threads(settings.federation.threads):
        source, settings = opened(task, settings, () if split == "all" else trained.sites, watch)
        sites = source.sites if isinstance(source, ImageFolder) else task.sites_of(settings.data)
        for number, name in enumerate(sites):
            watch({"phase": "evaluate", "site": name, "done": number, "total": len(sites)})
            images = chosen_images(source, name, split, trained)
            if isinstance(source, ImageFolder):
                warn_of_strange_images(source, name, description)
            candidates = models_for(folder, site or name, images, settings, device=device, own=site is not None)
            if candidates.note:
                logger.warning("%s: %s", name, candidates.note)
            results[name] = {"images": float(len(images))} | mean_score(candidates, settings, images)
    return results


@dataclass(frozen=True)
class Trained:
    """The sites that a model was trained at, and what their images can be recognized by."""

    sites: tuple[str, ...]
    fingerprints: Mapping[str, str]

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Trained:
        """As its description says; a site's own model was trained with the others too."""
        data = description["settings"]["data"]
        sites = tuple(data.get("sites") or description["sites"])
        return cls(sites, dict(zip(sites, data.get("fingerprints") or (), strict=False)))

    def check(self, site: str, images: ImageFolder, hint: str = NAME_A_PART) -> None:
        """Refuse images of which it cannot be said which were trained on: a split depends on them and on the name."""
        known = self.fingerprints.get(site)  # empty where only the site itself knows it
        if known and known != images.fingerprint(site):
            raise UsageError(f"{site} took part in training, but with other images or another split; {hint}")
        for name, other in self.fingerprints.items():
            if not known and other and other == images.fingerprint(site, trained_as=name):
                raise UsageError(f"{site} took part in training as {name}, and so with another split; {hint}")


def opened(task: Task, settings: Settings, limited: Sequence[str], watch: Watch) -> tuple[Source, Settings]:
    """Where the images come from, all of them read once, and the settings with what they decide."""
    if not settings.data.folder:
        phantom = task.open(settings.data)
        watch({"phase": "images", "images": settings.data.images_used})
        return phantom, settings
    source = task.open_folder(settings.data, watch, limited)
    watch({"phase": "images", "images": settings.data.images_used})
    source.inspect_images()
    source.refuse_if_broken()
    source.warn_of_other_grids()
    return source, settings.with_values("data", **source.found())


def warn_of_strange_images(source: ImageFolder, site: str, description: Mapping[str, Any]) -> None:
    """Say how many images of a site are stored unlike those of training, where that may mislead the model."""
    entry = source.entry(site)
    looks = looks_in(entry.facts) if entry else []
    for note, count in strange_ones(looks, description.get("training_images"), source.data).items():
        logger.warning("%s: %d of %d images: %s", site, count, len(looks), note)


def settings_for(
    folder: Path, description: Mapping[str, Any], data: str | Path | None, changes: dict[str, Any]
) -> Settings:
    """The settings that the model was trained with, changed for the images that it is to be scored on."""
    others = [name for name in changes if not name.startswith("data.")]
    if others:
        raise UsageError(f"{', '.join(others)}: only data settings can be changed for an evaluation")
    tree = dict(description["settings"])
    if data is not None:
        # Its own sites, but the model's channels and classes: those are built into it.
        dropped = ("sites", "hold_out_site", "fingerprints")
        kept = {name: value for name, value in tree["data"].items() if name not in dropped}
        tree["data"] = kept | {"folder": os.path.abspath(data)}
    elif not description.get("synthetic", True):
        raise UsageError(f"{folder}: trained on images of a folder: say which to score it on, with --data")
    settings, _ = resolve(file=merge(tree, nest(changes)))
    size = description["settings"]["data"]["size"]
    if settings.data.size != size:
        raise UsageError(f"data.size = {settings.data.size}: this model takes images of {size} pixels")
    _check_classes(settings, description)
    return settings


def _check_classes(settings: Settings, description: Mapping[str, Any]) -> None:
    """Refuse other classes, or another order of them: each is one of the model's outputs."""
    task = registry.tasks.find(settings.task)
    own = tuple(description["settings"]["data"].get("classes") or task.classes)
    if own and task.classes_of(settings.data) != own:
        raise UsageError(f"data.classes = {settings.data.classes!r}: this model gives {', '.join(own)}, in this order")


def chosen_images(source: Source, site: str, split: str, trained: Trained) -> ImageSet:
    """A site's test images if it took part in training, else all of them, unless a part is named."""
    if split == "auto" and isinstance(source, ImageFolder):
        trained.check(site, source)
    part = ("test" if site in trained.sites else "all") if split == "auto" else split
    if part == "all":
        return source.whole(site)
    named = source.named(site, part) if isinstance(source, ImageFolder) else None
    return named or dict(zip(SPLITS, source.parts(site), strict=True))[part]


def models_for(
    folder: Path,
    site: str,
    images: ImageSet,
    settings: Settings,
    method: Method | None = None,
    device: str = "auto",
    own: bool = False,
) -> Candidates:
    """The model for a hospital: the one of all, its own, or what can be had where it has none.

    FedBN at a hospital that took no part: the sites' mean, its batch norm statistics re-estimated on the hospital's
    unlabelled images. `local`: every site's model, as none is the hospital's.
    """
    description = read_description(folder)
    place = choose_device(device)
    if is_whole(folder):
        return Candidates((open_model(folder, site if own else None, method)[0].to(place),))
    if own or site in description["sites"]:
        return Candidates((open_model(folder, site, method)[0].to(place),))
    each = [open_model(folder, name, method) for name in description["sites"]]
    models = [model.to(place) for model, *_ in each]
    chosen = each[0][3]
    shared = set(chosen.shares(models[0].network))
    if not shared:
        return Candidates(tuple(models), MEAN_OF_MODELS)
    model = mean_model(models, shared)
    estimate_statistics(model, images, settings.training.batch_size)
    return Candidates((model,), RE_ESTIMATED)


def mean_model(models: Sequence[Model], shared: set[str]) -> Model:
    """The first model with the mean of what each site kept for itself; the rest is the same everywhere."""
    states = [snapshot(model) for model in models]
    first = models[0]
    same = {f"network.{name}" for name in shared}

    def mean(name: str, value: Tensor) -> Tensor:
        if name in same or not value.is_floating_point():
            return value
        return torch.stack([state[name] for state in states]).mean(dim=0)

    first.load_state_dict({name: mean(name, value) for name, value in states[0].items()})
    return first


def estimate_statistics(model: Model, images: ImageSet, batch_size: int) -> None:
    """Set the batch norms' running statistics to those of some images; their labels are not looked at."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    device = next(model.parameters()).device
    model.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over batches
        layer.train()
    with torch.no_grad():
        for batch in images.batches(max(2, batch_size)):
            if len(batch) > 1 or len(images) == 1:  # one image alone has no variance where features are 1 × 1
                model(to_device(batch.images, device))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.eval()


def mean_score(candidates: Candidates, settings: Settings, images: ImageSet) -> Scores:
    """The scores of the model, or the mean over the models if there are several."""
    task = registry.tasks.find(settings.task)
    each = []
    for model in candidates.models:
        with evaluating(model):
            each.append(score(model, task, settings, images, thorough=True))
    names = [name for name in each[0] if all(name in scores for scores in each)]
    return {name: statistics.fmean(scores[name] for scores in each) for name in names}


def score_unseen(folder: Path, settings: Settings, method: Method) -> tuple[Scores, str]:
    """Score a finished model on all images of the hospital that was held out; how, if it is not the plain way."""
    name = settings.data.hold_out_site
    assert name is not None
    images = registry.tasks.find(settings.task).open(settings.data).whole(name)
    candidates = models_for(folder, name, images, settings, method, settings.device)
    return {"images": float(len(images))} | mean_score(candidates, settings, images), candidates.note
