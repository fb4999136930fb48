"""What a task is: data, network, loss, score and defaults, under fixed names."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from harmofl import registry
from harmofl.data.cache import chosen_cache
from harmofl.data.folder import ImageFolder, open_folder
from harmofl.data.images import ImageSet, LabelledImages, Parts, Site, join_sets, split
from harmofl.data.layouts.layout import Layout
from harmofl.data.phantoms.drawn import draw_once
from harmofl.data.samples import POOLED
from harmofl.data.volumes import to_patches
from harmofl.errors import UsageError, unknown_name
from harmofl.events import Watch, ignore
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.models.network import build_network
from harmofl.models.volumes import Volume
from harmofl.registry import Kind, Registry
from harmofl.settings import DataSettings, Settings
from harmofl.tasks.losses import Loss
from harmofl.tasks.scorers import MISSING, ClassificationScorer, Scorer, SegmentationScorer
from harmofl.tasks.scores import ScoreEntry


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
    volume_channels: int = 0
    """Channels of its volumes, with data.dimensions = 3; 0 if it makes none."""
    drawn_once: bool = False
    """Whether images may be kept in the cache: they depend on the code of `harmofl.data.phantoms`, on the module of
    `make_images`, on the site and on DRAWN_BY, and on nothing else."""


DRAWN_BY = ("images", "size", "dimensions", "spacing", "shift", "seed")
"""The settings of the data that a phantom kept in the cache depends on."""


@dataclass(frozen=True)
class PhantomSource:
    """The sites of a phantom."""

    phantom: Phantom
    data: DataSettings

    def parts(self, site: str) -> Parts:
        """The site's images, split."""
        return split(self.whole(site), site, self.data.split_by, self.data.seed)

    def whole(self, site: str) -> LabelledImages:
        """The site's images, from the cache if they have been drawn before."""
        make, data = self.phantom.make_images, self.data
        if not self.phantom.drawn_once:
            return make(site, data)
        told = [site, *(getattr(data, name) for name in DRAWN_BY)]
        return draw_once(partial(make, site, data), make, told, chosen_cache(data.cache))


@dataclass(frozen=True)
class Task:
    """A learning problem shared by several sites: data, network, loss, score and defaults.

    Attributes:
        name: what users call it.
        title: the same in words.
        kind: "classification" or "segmentation".
        main_score: the name of the score that selects a round, unless the user chooses another.
        layout: how its images lie in a folder.
        about_data: the same in words.
        presets: the settings of "paper", "paper-code", "small" and "smoke", as {"section": {"name": value}}.
        classes: their names, the first is background in segmentation; empty: they are found in the data.
        channels: of the phantom's images.
        phantom: synthetic hospitals, for runs without a folder.

    >>> from harmofl import registry
    >>> task = registry.tasks.find("nuclei")
    >>> task.kind, task.main_score, task.classes
    ('segmentation', 'dice', ('background', 'nucleus'))
    """

    name: str
    title: str
    kind: Kind
    main_score: str
    layout: Layout
    about_data: str
    presets: Mapping[str, Mapping[str, Any]]
    classes: tuple[str, ...] = ()
    channels: int = 0
    phantom: Phantom | None = None

    def check(self, settings: Settings) -> None:
        """Raise an error for settings that do not fit the task."""
        self._check_choice("model.network", registry.networks, settings.model.network)
        self._check_choice("training.loss", registry.losses, settings.training.loss)
        self._check_choice("training.score", registry.scores, settings.training.score or self.main_score)
        data = settings.data
        if self.classes and data.classes not in (None, list(self.classes)):
            raise UsageError(f"data.classes = {data.classes!r}: {self.name} has {', '.join(self.classes)}")
        if data.hold_out_site and data.sites and data.hold_out_site in data.sites:
            raise UsageError(f"data.hold_out_site = {data.hold_out_site!r}: it is also in data.sites")
        if self.phantom and not data.folder and data.images < self.phantom.fewest_images:
            raise UsageError(f"data.images = {data.images}: {self.name} needs at least {self.phantom.fewest_images}")

        if data.dimensions not in self.score_for(settings).dimensions:
            other = 5 - data.dimensions
            raise UsageError(f"training.score = {settings.training.score!r}: it is for data.dimensions = {other} only")
        if data.dimensions == 3:
            check_volumes(self, settings)
        else:
            check_images(settings)
        check_strides(self, settings)

    def _check_choice(self, setting: str, known: Registry[Any], name: str) -> None:
        """Raise an error for an unknown name, or for something that is for another kind of task."""
        if self.kind not in known.find(name).kinds:
            fitting = [entry.name for entry in known if self.kind in entry.kinds]
            raise UsageError(f"{setting} = {name!r}: {self.name} takes {' or '.join(fitting)}")

    def open(self, data: DataSettings) -> Source:
        """Where the images come from: the folder, or the task's phantom."""
        if data.folder:
            return self.open_folder(data)
        if self.phantom is None:
            raise UsageError(f"{self.name} has no synthetic hospitals: say where the images are, with --data")
        if data.dimensions == 3 and not self.phantom.volume_channels:
            raise UsageError(f"data.dimensions = 3: the synthetic hospitals of {self.name} have no volumes")
        for site in (data.sites or []) + ([data.hold_out_site] if data.hold_out_site else []):
            if site not in self.phantom.sites:
                raise unknown_name("site", site, self.phantom.sites)
        return PhantomSource(self.phantom, data)

    def open_folder(
        self, data: DataSettings, watch: Watch = ignore, limited: Collection[str] | None = None
    ) -> ImageFolder:
        """The images of a folder in this task's layout; `limited`: the sites that data.limit is for."""
        return open_folder(self.kind, self.layout, data, self.classes, watch, limited)

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
        trains = {site: to_patches(train, data) for site, (train, _, _) in parts.items()}
        return Site(
            name=name,
            train=join_sets(list(trains.values())) if name == POOLED else trains[name],
            val={site: val for site, (_, val, _) in parts.items()},
            test={site: test for site, (_, _, test) in parts.items()},
            train_of=trains,
        )

    def classes_of(self, data: DataSettings) -> tuple[str, ...]:
        """The classes' names; the first is background in segmentation."""
        return tuple(data.classes or self.classes)

    def image_shape(self, data: DataSettings) -> tuple[int, ...]:
        """The (C, H, W) of the images that reach the harmonizer, or (C, D, H, W) of volumes."""
        return (data.channels or self.phantom_channels(data), *data.input_size)

    def picture_shape(self, data: DataSettings) -> tuple[int, int, int]:
        """The same where only images will do."""
        if data.dimensions == 3:
            raise UsageError(
                "data.dimensions = 3: this works on images, not on volumes; train with data.dimensions = 2"
            )
        channels, height, width = self.image_shape(data)
        return channels, height, width

    def phantom_channels(self, data: DataSettings) -> int:
        """How many channels the synthetic hospitals' images, or volumes, have."""
        return self.phantom.volume_channels if self.phantom and data.dimensions == 3 else self.channels

    def loss(self, settings: Settings) -> Loss:
        """What training lowers."""
        return registry.losses.find(settings.training.loss).compute

    def score_for(self, settings: Settings) -> ScoreEntry:
        """The score that selects a round: the user's choice, or the task's own."""
        return registry.scores.find(settings.training.score or self.main_score)

    def scorers(self, settings: Settings, thorough: bool) -> list[Scorer]:
        """What measures the predictions: with the scorer of the chosen score, that of the task's own."""
        chosen = self.score_for(settings)
        factories = dict.fromkeys([chosen.scorer, registry.scores.find(self.main_score).scorer])
        classes = self.classes_of(settings.data)
        return [make(classes, thorough or (chosen.slow and make is chosen.scorer)) for make in factories]

    def score_ranges(self, settings: Settings) -> tuple[dict[str, tuple[float, float]], bool]:
        """The lowest and highest value of every score by name, and whether there can be no other names.

        Of a scorer of the user's own, only the scores that are registered are known.
        """
        chosen, classes = self.score_for(settings), self.classes_of(settings.data)
        factories = {chosen.scorer, registry.scores.find(self.main_score).scorer}
        known = {entry.name: entry.range for entry in registry.scores if entry.scorer in factories}
        of_classes = {f"{name}_{label}": ends for name, ends in known.items() for label in classes}
        anything = {"loss": (-math.inf, math.inf), "metric": chosen.range, MISSING: (0.0, math.inf)}
        return known | of_classes | anything, factories <= {ClassificationScorer, SegmentationScorer}

    def build_model(self, settings: Settings, method: Method) -> Model:
        """The method's harmonizer and a freshly initialized network."""
        shape = self.image_shape(settings.data)
        network = build_network(
            registry.networks.find(settings.model.network),
            shape[0],
            len(self.classes_of(settings.data)),
            settings.model.features,
            settings.model.norm,
            settings.seed,
            volume_of(settings),
            settings.model.standardize,
        )
        return Model(method.harmonizer(shape), network)


def volume_of(settings: Settings) -> Volume | None:
    """What a network must know of the volumes that it sees; None where it sees images."""
    data = settings.data
    if data.dimensions == 2:
        return None
    depth, height, width = data.input_size
    strides = tuple((first, second, third) for first, second, third in settings.model.strides or ())
    slices, rows, columns = data.spacing or (1.0, 1.0, 1.0)
    return Volume((depth, height, width), (slices, rows, columns), strides)


def check_images(settings: Settings) -> None:
    """Raise an error for settings that go with `data.dimensions = 3` only."""
    data, network = settings.data, settings.model.network
    if 2 not in registry.networks.find(network).dimensions:
        raise UsageError(f"model.network = {network!r}: it is for data.dimensions = 3 only")
    for name, value in (("spacing", data.spacing), ("patch", data.patch)):
        if value is not None:
            raise UsageError(f"data.{name} = {value}: only for data.dimensions = 3, which keeps volumes whole")


def check_strides(task: Task, settings: Settings) -> None:
    """Raise an error for strides that the network would not follow."""
    strides, network = settings.model.strides, settings.model.network
    if strides is not None and not registry.networks.find(network).takes_strides:
        fitting = [entry.name for entry in registry.networks if entry.takes_strides and task.kind in entry.kinds]
        hint = f"only {', '.join(fitting)} would" if fitting else f"none for {task.kind} does"
        raise UsageError(f"model.strides = {strides}: model.network = {network!r} does not follow them; {hint}")


def check_volumes(task: Task, settings: Settings) -> None:
    """Raise an error for settings that do not go with `data.dimensions = 3`."""
    data, network = settings.data, settings.model.network
    if data.neighbours:
        raise UsageError(f"data.neighbours = {data.neighbours}: must be 0 with data.dimensions = 3: volumes stay whole")
    if 3 not in registry.networks.find(network).dimensions:
        fitting = [entry.name for entry in registry.networks if 3 in entry.dimensions and task.kind in entry.kinds]
        raise UsageError(f"model.network = {network!r}: for data.dimensions = 3 there are {', '.join(fitting)}")
    if data.is_synthetic and task.phantom and not task.phantom.volume_channels:
        raise UsageError(f"data.dimensions = 3: the synthetic hospitals of {task.name} have no volumes; give --data")
