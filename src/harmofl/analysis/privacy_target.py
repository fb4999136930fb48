"""What the privacy study attacks: one site's images and three networks; and how much it computes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, nn

from harmofl import registry
from harmofl.analysis.loaded_runs import open_images
from harmofl.data.images import LabelledImages, seed_of
from harmofl.errors import UsageError
from harmofl.methods.layers import Harmonizer
from harmofl.methods.method import Method
from harmofl.registry import Kind
from harmofl.runs.finished import read_run
from harmofl.runs.model_folder import open_model
from harmofl.settings import Settings, resolve
from harmofl.tasks.task import Task

CONTROL, UNTRAINED, TRAINED = "control", "untrained", "trained"
FEWEST_OTHERS = 4
"""Images outside the average that chance needs."""


@dataclass(frozen=True)
class Effort:
    """How much the study computes."""

    images: int = 2
    """Images (or batches) that gradient inversion is tried on."""
    batch: int = 4
    restarts: int = 2
    iterations: int = 200
    local_steps: int = 2
    site_images: int = 200
    """Per site, of a phantom."""
    size: int = 32
    rounds: int = 8
    """Of the training that makes the trained network, if no run is given."""
    averaged: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    draws: int = 8
    retrieval_restarts: int = 8
    retrieval_iterations: int = 400
    others: int = 8
    """Images of the same site, outside the average, whose similarity to those in it is chance; per draw."""


QUICK = Effort(
    images=1,
    batch=2,
    restarts=1,
    iterations=2,
    site_images=40,
    size=16,
    rounds=1,
    averaged=(1, 2, 4),
    draws=2,
    retrieval_restarts=2,
    retrieval_iterations=4,
    others=4,
)
"""Seconds, and no result worth reading."""


@dataclass(frozen=True)
class Target:
    """One site's images, and the networks whose updates are attacked."""

    task: Task
    settings: Settings
    site: str
    images: LabelledImages
    networks: dict[str, nn.Module]
    method: Method
    """Of the run that made the trained network."""
    harmonizer: Harmonizer
    """What the run puts before the trained network."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image."""
        return self.task.picture_shape(self.settings.data)


def open_target(folder: Path, effort: Effort, seed: int) -> Target:
    """The first site of a finished run."""
    run = read_run(folder)
    resolved, method = resolve(file=run.settings)
    settings = run.facts.complete(resolved) if run.facts else resolved
    chosen = registry.tasks.find(settings.task)
    site = chosen.sites_of(settings.data)[0]
    train = chosen.load_site(site, settings.data, open_images(chosen, settings, run.facts)[0]).train
    most = max(effort.averaged) + max(effort.others, effort.batch, FEWEST_OTHERS)
    order = torch.randperm(len(train), generator=Generator().manual_seed(seed_of(seed, "privacy")))
    images = train.load(order[: 2 * most])
    if len(images) < effort.batch + FEWEST_OTHERS:
        raise UsageError(f"{site} has {len(images)} training images: the study needs {effort.batch + FEWEST_OTHERS}")
    if effort.images + FEWEST_OTHERS > len(images):
        allowed = len(images) - FEWEST_OTHERS
        raise UsageError(
            f"--images {effort.images}: must be at most {allowed}, with {len(images)} images of {site} at hand"
        )
    model = open_model(run.model, site).model
    networks = {
        CONTROL: control_network(
            chosen.kind, chosen.picture_shape(settings.data), len(chosen.classes_of(settings.data))
        ),
        UNTRAINED: chosen.build_model(settings, method).network.eval(),
        TRAINED: model.network,
    }
    return Target(chosen, settings, site, images, networks, method, model.harmonizer)


def control_network(kind: Kind, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A network that is easy to invert (after Zhu et al., NeurIPS 2019): without it, failure would prove nothing."""
    channels, height, width = image_shape
    stride = 2 if kind == "classification" else 1
    layers = [nn.Conv2d(channels, 12, 5, stride, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, stride, 2), nn.Sigmoid()]
    features = 12 * math.ceil(height / 4) * math.ceil(width / 4)
    head = [nn.Flatten(), nn.Linear(features, classes)] if kind == "classification" else [nn.Conv2d(12, classes, 1)]
    network = nn.Sequential(*layers, *head).eval()
    generator = Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.uniform_(-0.25, 0.25, generator=generator)
    return network
