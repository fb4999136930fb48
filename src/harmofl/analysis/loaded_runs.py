"""Finished runs with their models in memory, to be analysed."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from harmofl import registry
from harmofl.analysis.losses import Batch
from harmofl.data.facts import DataFacts
from harmofl.data.folder import ImageFolder
from harmofl.data.images import Site, seed_of, split_into_batches
from harmofl.devices import choose_device, move_model, to_device
from harmofl.errors import UsageError
from harmofl.events import Watch, ignore
from harmofl.inference.evaluation import TrainingSites, open_source
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.runs.finished import FinishedRun, read_run
from harmofl.runs.folder import RunFolder
from harmofl.runs.labels import label_distinctly
from harmofl.runs.model_folder import has_one_model, open_model
from harmofl.settings import Settings, differences, resolve
from harmofl.states import evaluating
from harmofl.tasks.losses import Loss
from harmofl.tasks.task import Source, Task

COMPARED = ("task", "data.", "model.network", "model.features", "model.norm", "training.loss")
"""Settings in which runs that are shown on one scale must agree."""


@dataclass(frozen=True)
class LoadedRun:
    """A finished run with its models; the same one for every site unless sites keep a part for themselves."""

    finished: FinishedRun
    settings: Settings
    method: Method
    models: Mapping[str, Model]
    """By site."""

    @property
    def label(self) -> str:
        """What tables and figures call it."""
        return self.finished.title

    @property
    def task(self) -> Task:
        """What it learned."""
        return registry.tasks.find(self.settings.task)

    @property
    def sites(self) -> list[str]:
        """Who took part."""
        return list(self.models)

    @property
    def loss(self) -> Loss:
        """What training lowered."""
        return self.task.loss(self.settings)

    def copy_for(self, site: str) -> LoadedRun:
        """One site alone, with a model that nobody else uses."""
        return replace(self, models={site: copy.deepcopy(self.models[site])})

    def load_sites(self, source: Source) -> list[Site]:
        """Every site's images."""
        return [self.task.load_site(name, self.settings.data, source) for name in self.sites]

    def batches(self, site: Site, count: int, seed: int) -> Iterator[Batch]:
        """Yield some of a site's training images, harmonized, in batches of the run's size."""
        generator = torch.Generator().manual_seed(seed_of(seed, site.name, "batches"))
        chosen = torch.randperm(len(site.train), generator=generator)[:count]
        for indices in split_into_batches(chosen, self.settings.training.batch_size):
            batch = site.train.load(indices)
            yield self._harmonize(site.name, batch.images), batch.targets.to(self._device(site.name))

    def _harmonize(self, site: str, images: Tensor) -> Tensor:
        model, device = self.models[site], self._device(site)
        with evaluating(model):
            return to_device(model.harmonizer(to_device(images, device)), device)

    def _device(self, site: str) -> torch.device:
        return next(self.models[site].parameters()).device


def open_images(
    task: Task, settings: Settings, facts: DataFacts | None, watch: Watch = ignore
) -> tuple[Source, Settings]:
    """Where a finished run's images come from, and its settings with what they decide; other images are refused."""
    settings = facts.complete(settings) if facts else settings  # classes keep the numbers that the run gave them
    sites = task.sites_of(settings.data)
    trained = TrainingSites(sites, dict(zip(sites, facts.fingerprints if facts else (), strict=False)))
    source, complete = open_source(task, settings, sites, watch)
    if isinstance(source, ImageFolder):
        for site in sites:
            trained.check(site, source, hint="a run is looked at with the images that it was trained on")
    return source, complete


def load_runs(folders: Sequence[Path], device: str) -> list[LoadedRun]:
    """Load finished runs that can be compared, or raise an error that says why they cannot."""
    if not folders:
        raise UsageError("no run given: name the folder of a finished run")
    finished = label_distinctly([read_run(folder) for folder in folders])
    runs = [_load_run(run, device) for run in finished]
    for run in runs[1:]:
        _check_comparable(runs[0], run)
    return runs


def fingerprint(run: FinishedRun) -> str:
    """What tells two runs apart: the settings and the weights."""
    files = [RunFolder(run.folder).config, *sorted(run.model.rglob("model.safetensors"))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(run.folder)).encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _load_run(run: FinishedRun, device: str) -> LoadedRun:
    resolved = resolve(file=run.settings)[0].model_copy(update={"device": device})
    settings = run.facts.complete(resolved) if run.facts else resolved
    sites = registry.tasks.find(settings.task).sites_of(settings.data)
    if has_one_model(run.model):
        shared = open_model(run.model)
        method, models = shared.method, dict.fromkeys(sites, shared.model)
    else:
        own = {site: open_model(run.model, site) for site in sites}
        method, models = own[sites[0]].method, {site: trained.model for site, trained in own.items()}
        _check_common_weights(run.folder, method, models)
    for model in models.values():
        move_model(model, choose_device(device))
    return LoadedRun(run, settings, method, models)


def _check_common_weights(folder: Path, method: Method, models: Mapping[str, Model]) -> None:
    """Sites may have norm layers of their own, which no direction moves, but need all other weights in common."""
    networks = [model.network for model in models.values()]
    for name, weight in networks[0].named_parameters():
        if weight.ndim > 1 and not all(torch.equal(weight, other.get_parameter(name)) for other in networks[1:]):
            raise UsageError(
                f"{folder}: the sites of {method.name} share no model, so their losses have no common centre; "
                "choose runs whose sites share their weights"
            )


def _check_comparable(first: LoadedRun, other: LoadedRun) -> None:
    changed = [name for name in differences(first.settings, other.settings) if name.startswith(COMPARED)]
    if not changed and first.finished.facts and other.finished.facts:
        changed = list(filter(None, [first.finished.facts.difference(other.finished.facts)]))
    if changed:
        raise UsageError(
            f"{first.finished.folder} and {other.finished.folder} differ in {', '.join(changed)}: "
            "only runs with the same data, network and loss can be shown on one scale"
        )
