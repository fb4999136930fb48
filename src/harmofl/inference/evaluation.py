"""Scores of a finished model on labelled images, at hospitals that took part and at others."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harmofl import registry
from harmofl.data.folder import ImageFolder
from harmofl.data.images import ImageSet
from harmofl.data.inspection import check_for_scoring
from harmofl.data.looks import count_strange_looks, looks_in
from harmofl.data.samples import SPLITS
from harmofl.devices import check_device, threads
from harmofl.errors import UsageError
from harmofl.events import StepDone, Watch, ignore
from harmofl.runs.model_folder import read_description
from harmofl.runs.site_models import mean_score, models_for
from harmofl.settings import Settings, merge, nest, resolve
from harmofl.tasks.data_facts import announce_images
from harmofl.tasks.scorers import Scores
from harmofl.tasks.task import Source, Task

CHOICES = ("auto", *SPLITS, "all")
logger = logging.getLogger(__name__)

NAME_A_PART = "name a part with --split: all, test, val or train"


def evaluate_model(
    folder: Path,
    data: str | Path | None = None,
    site: str | None = None,
    changes: Mapping[str, Any] | None = None,
    split: str = "auto",
    device: str = "auto",
    watch: Watch = ignore,
) -> dict[str, Scores]:
    """Score a model at every site of a folder, or of the phantom that it was trained on."""
    check_device(device)
    if split not in CHOICES:
        raise UsageError(f"split = {split!r}: must be one of {', '.join(CHOICES)}")
    description = read_description(folder)
    settings = settings_for(folder, description, data, dict(changes or {}))
    task, trained = registry.tasks.find(settings.task), TrainingSites.of(description)
    results = {}
    with threads(settings.federation.threads):
        source, settings = open_source(task, settings, () if split == "all" else trained.sites, watch)
        sites = source.sites if isinstance(source, ImageFolder) else task.sites_of(settings.data)
        for number, name in enumerate(sites):
            watch(StepDone(f"scoring {name}", number, len(sites)))
            images = choose_images(source, name, split, trained)
            if isinstance(source, ImageFolder):
                warn_of_strange_images(source, name, description)
            candidates = models_for(folder, site or name, images, settings, device=device, own=site is not None)
            if candidates.note:
                logger.warning("%s: %s", name, candidates.note)
            results[name] = {"images": float(len(images))} | mean_score(candidates, settings, images)
    return results


@dataclass(frozen=True)
class TrainingSites:
    """The sites that a model was trained at, and what their images can be recognized by."""

    sites: tuple[str, ...]
    fingerprints: Mapping[str, str]

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> TrainingSites:
        """Those of a model's description; a site's own model was trained with the others too."""
        trained_on = description["trained_on"]
        return cls(tuple(trained_on["sites"]), dict(zip(trained_on["sites"], trained_on["fingerprints"], strict=False)))

    def check(self, site: str, images: ImageFolder, hint: str = NAME_A_PART) -> None:
        """Raise an error if it is unknown which images were trained on: a split depends on the images and the name."""
        known = self.fingerprints.get(site)  # empty where only the site itself knows it
        if known and known != images.fingerprint(site):
            raise UsageError(f"{site} took part in training, but with other images or another split; {hint}")
        for name, other in self.fingerprints.items():
            if not known and other and other == images.fingerprint(site, trained_as=name):
                raise UsageError(f"{site} took part in training as {name}, and so with another split; {hint}")


def open_source(task: Task, settings: Settings, limited: Sequence[str], watch: Watch) -> tuple[Source, Settings]:
    """Open the source of the images, each of them read once, and fill in what they decide of the settings."""
    if not settings.data.folder:
        phantom = task.open(settings.data)
        announce_images(settings.data, watch)
        return phantom, settings
    source = task.open_folder(settings.data, watch, limited)
    announce_images(settings.data, watch, is_limited=not set(limited).isdisjoint(source.sites))
    check_for_scoring(source)
    return source, source.facts().complete(settings)


def warn_of_strange_images(source: ImageFolder, site: str, description: Mapping[str, Any]) -> None:
    """Warn of images of a site that are stored unlike those of training, where that may mislead the model."""
    entry = source.decoded(site).entry
    looks = looks_in(entry.facts) if entry else []
    for note, count in count_strange_looks(looks, description.get("training_images"), source.data).items():
        logger.warning("%s: %d of %d images: %s", site, count, len(looks), note)


def settings_for(
    folder: Path, description: Mapping[str, Any], data: str | Path | None, changes: dict[str, Any]
) -> Settings:
    """The settings that the model was trained with, changed for the images that it is to be scored on."""
    others = [name for name in changes if not name.startswith(("data.", "prediction."))]
    if others:
        raise UsageError(f"{', '.join(others)}: only data and prediction settings can be changed for an evaluation")
    tree = dict(description["settings"])
    if data is not None:
        # Its own sites, but the model's channels and classes: those are built into it.
        dropped = ("sites", "hold_out_site")
        kept = {name: value for name, value in tree["data"].items() if name not in dropped}
        tree["data"] = kept | {"folder": os.path.abspath(data)}
    elif not description.get("synthetic", True):
        raise UsageError(f"{folder}: trained on images in a folder: name a folder to score it on, with --data")
    settings, _ = resolve(file=merge(tree, nest(changes)))
    _check_size(settings, description)
    _check_classes(settings, description)
    return settings


def _check_size(settings: Settings, description: Mapping[str, Any]) -> None:
    """Raise an error for another size than that of the model's input."""
    own = description["settings"]["data"]
    if settings.data.dimensions != own.get("dimensions", 2):
        raise UsageError(f"data.dimensions = {settings.data.dimensions}: this model takes {own.get('dimensions', 2)}")
    if settings.data.dimensions == 2 and settings.data.size != own["size"]:
        raise UsageError(f"data.size = {settings.data.size}: this model takes images of {own['size']} pixels")
    size = list(settings.data.input_size)
    if settings.data.dimensions == 3 and size != own.get("patch", size):
        raise UsageError(f"data.patch = {size}: this model takes patches of {own['patch']} voxels")


def _check_classes(settings: Settings, description: Mapping[str, Any]) -> None:
    """Raise an error for other classes, or another order of them: each is one of the model's outputs."""
    task = registry.tasks.find(settings.task)
    own = tuple(description["settings"]["data"].get("classes") or task.classes)
    if own and task.classes_of(settings.data) != own:
        raise UsageError(f"data.classes = {settings.data.classes!r}: this model gives {', '.join(own)}, in this order")


def choose_images(source: Source, site: str, split: str, trained: TrainingSites) -> ImageSet:
    """A site's test images if it took part in training, else all of them, unless a part is named."""
    if split == "auto" and isinstance(source, ImageFolder):
        trained.check(site, source)
    part = ("test" if site in trained.sites else "all") if split == "auto" else split
    if part == "all":
        return source.whole(site)
    named = source.divided(site).assigned_to(part) if isinstance(source, ImageFolder) else None
    return named or dict(zip(SPLITS, source.parts(site), strict=True))[part]
