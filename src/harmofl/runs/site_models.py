"""The models of a model folder that can be used at a hospital, whether it took part or not, and their scores there."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from harmofl import registry
from harmofl.data.images import ImageSet
from harmofl.data.volumes import to_patches
from harmofl.devices import choose_device, to_device
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.methods.sharing import running_statistics
from harmofl.runs.model_folder import has_one_model, open_model, read_description
from harmofl.settings import Settings
from harmofl.states import evaluating, snapshot
from harmofl.tasks.scorers import Scores
from harmofl.tasks.scoring import score
from harmofl.tasks.task import Source

MEAN_OF_OWN_LAYERS = "with the mean of the layers that each site keeps"
MEAN_OF_MODELS = "mean of the scores of the sites' models"


@dataclass(frozen=True)
class Candidates:
    """The models that can be used on a hospital's images, and a note on how they came to be."""

    models: tuple[Model, ...]
    note: str = ""


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

    A method whose sites keep layers, at a hospital that took no part: the sites' mean, adapted to the hospital's
    unlabelled images as the method says. `local`: every site's model, as none is the hospital's.
    """
    description = read_description(folder)
    place = choose_device(device)
    if has_one_model(folder):
        trained = open_model(folder, site if own else None, method)
        model = trained.model.to(place)
        if own or site in description["sites"] or "adapted" in description:
            return Candidates((model,))
        return Candidates((model,), _adapt(model, trained.method, images, settings))
    if own or site in description["sites"]:
        return Candidates((open_model(folder, site, method).model.to(place),))
    each = [open_model(folder, name, method) for name in description["sites"]]
    models = [trained.model.to(place) for trained in each]
    chosen = each[0].method
    shared = shared_entries(chosen, models[0])
    if not shared:
        return Candidates(tuple(models), MEAN_OF_MODELS)
    model = mean_model(models, shared)
    return Candidates((model,), _adapt(model, chosen, images, settings) or MEAN_OF_OWN_LAYERS)


def _adapt(model: Model, method: Method, images: ImageSet, settings: Settings) -> str:
    """Change a model for a hospital that took no part, from its unlabelled images; return a note on what was done."""
    place, seen = next(model.parameters()).device, to_patches(images, settings.data)

    def batches() -> Iterator[Tensor]:
        return (to_device(batch.images, place) for batch in seen.batches(max(2, settings.training.batch_size)))

    layer = model.harmonizer
    if layer.own:
        layer.measure(batches())
    method.adapt.adapt(model, batches())
    return "; ".join(filter(None, [layer.note if layer.own else "", method.adapt.note]))


def shared_entries(method: Method, model: Model) -> set[str]:
    """The entries of the network that are the same at all sites: what travels, without statistics of a site's own."""
    if method.is_personal:
        return set()
    statistics = running_statistics(model.network) if method.adapt.at_every_site else {}
    return set(method.shares(model.network)) - {*statistics, *statistics.values()}


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


def mean_score(candidates: Candidates, settings: Settings, images: ImageSet) -> Scores:
    """The scores of the model, or the mean over the models if there are several."""
    task = registry.tasks.find(settings.task)
    each = []
    for model in candidates.models:
        with evaluating(model):
            each.append(score(model, task, settings, images, thorough=True))
    names = [name for name in each[0] if all(name in scores for scores in each)]
    return {name: statistics.fmean(scores[name] for scores in each) for name in names}


def score_unseen(folder: Path, settings: Settings, method: Method, source: Source | None = None) -> tuple[Scores, str]:
    """Score a finished model on all images of the hospital that was held out; the note says how, if it was adapted.

    `source`: the images, if they are open already.
    """
    name = settings.data.hold_out_site
    assert name is not None
    images = (source or registry.tasks.find(settings.task).open(settings.data)).whole(name)
    candidates = models_for(folder, name, images, settings, method, settings.device)
    return {"images": float(len(images))} | mean_score(candidates, settings, images), candidates.note
