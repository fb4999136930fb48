"""What a task is: data, network, loss, score and defaults, under fixed names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from harmofl.data.folder import ImageFolder, Watch, silent
from harmofl.data.images import ImageSet, LabelledImages, Parts, Site, joined, split
from harmofl.data.samples import POOLED, Listing
from harmofl.errors import UsageError, unknown_name
from harmofl.methods.method import Method
from harmofl.models.network import Model, build_network
from harmofl.settings import DataSettings, Settings
from harmofl.tasks.losses import LOSSES, Loss
from harmofl.tasks.scores import ClassificationScorer, Scorer, ScorerFactory, SegmentationScorer

Kind = Literal["classification", "segmentation"]
Layout = Callable[[Path, Path], Listing]
"""From a folder, and a folder in which it may keep what it found, to the samples."""

SCORERS: Mapping[Kind, ScorerFactory] = {"classification": ClassificationScorer, "segmentation": SegmentationScorer}
NETWORKS = {"classification": ("densenet121", "densenet-small"), "segmentation": ("unet",)}
LOSSES_OF = {"classification": ("cross-entropy",), "segmentation": ("dice", "cross-entropy", "dice-cross-entropy")}


class Source(Protocol):
    """Where the images of all sites come from."""

    def parts(self, site: str) -> Parts:
        """A site's images to train on, to select with and to test on."""

    def whole(self, site: str) -> ImageSet:
        """All images of a site."""


@dataclass(frozen=True)
class Phantom:
    """Synthetic sites."""

    sites: tuple[str, ...]
    make_images: Callable[[str, DataSettings], LabelledImages]
    fewest_images: int = 10
    """How many images per site it takes for three patients: one to train on, one for val, one for test."""


@dataclass(frozen=True)
class PhantomSource:
    """The sites of a phantom, made anew whenever they are asked for."""

    phantom: Phantom
    data: DataSettings

    def parts(self, site: str) -> Parts:
        """The site's images, split."""
        return split(self.whole(site), site, self.data.split_by, self.data.seed)

    def whole(self, site: str) -> LabelledImages:
        """The site's images."""
        return self.phantom.make_images(site, self.data)


@dataclass(frozen=True)
class Task:
    """A learning problem shared by several sites."""

    name: str
    title: str
    kind: Kind
    metric_name: str
    layout: Layout
    """How its images lie in a folder."""
    about_data: str
    """The same in words."""
    presets: Mapping[str, Mapping[str, Any]]
    classes: tuple[str, ...] = ()
    """Empty: they are found in the data."""
    channels: int = 0
    """Of the phantom."""
    phantom: Phantom | None = None

    def check(self, settings: Settings) -> None:
        """Refuse settings that do not fit the task."""
        network, loss, data = settings.model.network, settings.training.loss, settings.data
        if network not in NETWORKS[self.kind]:
            raise UsageError(f"model.network = {network!r}: {self._takes(NETWORKS[self.kind])}")
        if loss not in LOSSES_OF[self.kind]:
            raise UsageError(f"training.loss = {loss!r}: {self._takes(LOSSES_OF[self.kind])}")
        if self.classes and data.classes not in (None, list(self.classes)):
            raise UsageError(f"data.classes = {data.classes!r}: {self.name} has {', '.join(self.classes)}")
        if data.hold_out_site and data.sites and data.hold_out_site in data.sites:
            raise UsageError(f"data.hold_out_site = {data.hold_out_site!r}: it is also in data.sites")
        if self.phantom and not data.folder and data.images < self.phantom.fewest_images:
            raise UsageError(f"data.images = {data.images}: {self.name} needs at least {self.phantom.fewest_images}")

    def _takes(self, names: tuple[str, ...]) -> str:
        return f"{self.name} takes {' or '.join(names)}"

    def open(self, data: DataSettings) -> Source:
        """Where the images come from: the folder, or the task's phantom."""
        if data.folder:
            return self.open_folder(data)
        if self.phantom is None:
            raise UsageError(f"{self.name} has no synthetic hospitals: say where the images are, with --data")
        for site in (data.sites or []) + ([data.hold_out_site] if data.hold_out_site else []):
            if site not in self.phantom.sites:
                raise unknown_name("site", site, self.phantom.sites)
        return PhantomSource(self.phantom, data)

    def open_folder(
        self, data: DataSettings, watch: Watch = silent, limited: Collection[str] | None = None
    ) -> ImageFolder:
        """The images of a folder in this task's layout; `limited`: the sites that data.limit is for."""
        return ImageFolder(self.kind, self.layout, data, self.classes, watch, limited)

    def sites_of(self, data: DataSettings) -> tuple[str, ...]:
        """Who takes part."""
        named = tuple(data.sites or (self.phantom.sites if self.phantom else ()))
        return tuple(site for site in named if site != data.hold_out_site)

    def participants(self, method: Method, data: DataSettings) -> tuple[str, ...]:
        """Who trains: every site, or one that holds the union."""
        return (POOLED,) if method.pooled else self.sites_of(data)

    def load_site(self, name: str, data: DataSettings, source: Source | None = None) -> Site:
        """One site's images, split; the name POOLED stands for the union of all training images."""
        source = source or self.open(data)
        parts = {site: source.parts(site) for site in (self.sites_of(data) if name == POOLED else (name,))}
        return Site(
            name=name,
            train=joined([train for train, _, _ in parts.values()]) if name == POOLED else parts[name][0],
            val={site: val for site, (_, val, _) in parts.items()},
            test={site: test for site, (_, _, test) in parts.items()},
        )

    def classes_of(self, data: DataSettings) -> tuple[str, ...]:
        """The classes' names; the first is background in segmentation."""
        return tuple(data.classes or self.classes)

    def image_shape(self, data: DataSettings) -> tuple[int, int, int]:
        """The (C, H, W) of the images that reach the harmonizer."""
        return (data.channels or self.channels, data.size, data.size)

    def loss(self, settings: Settings) -> Loss:
        """What training lowers."""
        return LOSSES[settings.training.loss]

    def scorer(self, data: DataSettings, thorough: bool) -> Scorer:
        """What measures the predictions."""
        return SCORERS[self.kind](self.classes_of(data), thorough)

    def build_model(self, settings: Settings, method: Method) -> Model:
        """The method's harmonizer and a freshly initialized network."""
        shape = self.image_shape(settings.data)
        network = build_network(
            settings.model.network,
            shape[0],
            len(self.classes_of(settings.data)),
            settings.model.features,
            settings.model.norm,
            settings.seed,
        )
        return Model(method.harmonizer(shape), network)
