"""What a task is: data, network, loss, score and defaults, under fixed names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from harmofl.data.images import LabelledImages, Site, joined, split
from harmofl.methods.method import Method
from harmofl.models.network import Model, build_network
from harmofl.settings import DataSettings, Settings
from harmofl.tasks.scores import Scores

POOLED = "pooled"
"""The name of the one training site that holds all images."""


@dataclass(frozen=True)
class Task:
    """A learning problem shared by several sites."""

    name: str
    title: str
    metric_name: str
    sites: tuple[str, ...]
    num_classes: int
    channels: int
    make_images: Callable[[str, DataSettings], LabelledImages]
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Sequence[Tensor], LabelledImages, bool], Scores]
    presets: Mapping[str, Mapping[str, Any]]
    fewest_images: int = 10
    """How many images per site it takes for three patients: one to train on, one for val, one for test."""

    def load_site(self, name: str, data: DataSettings) -> Site:
        """One site's images, split; the name POOLED stands for the union of all training images."""
        parts = {site: self._split(site, data) for site in (self.sites if name == POOLED else (name,))}
        return Site(
            name=name,
            train=joined([train for train, _, _ in parts.values()]) if name == POOLED else parts[name][0],
            val={site: val for site, (_, val, _) in parts.items()},
            test={site: test for site, (_, _, test) in parts.items()},
        )

    def _split(self, site: str, data: DataSettings) -> tuple[LabelledImages, LabelledImages, LabelledImages]:
        return split(self.make_images(site, data), site, data.split_by, data.seed)

    def participants(self, method: Method) -> tuple[str, ...]:
        """Who trains: every site, or one that holds the union."""
        return (POOLED,) if method.pooled else self.sites

    def image_shape(self, data: DataSettings) -> tuple[int, int, int]:
        """The (C, H, W) of the images that reach the harmonizer."""
        return (self.channels, data.size, data.size)

    def build_model(self, settings: Settings, method: Method) -> Model:
        """The method's harmonizer and a freshly initialized network."""
        network = build_network(
            settings.model.network,
            self.channels,
            self.num_classes,
            settings.model.features,
            settings.model.norm,
            settings.seed,
        )
        return Model(method.harmonizer(self.image_shape(settings.data)), network)
