"""Hospitals' images to look at: chosen by a rule, harmonized as a federation would, and described in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harmofl import registry
from harmofl.analysis.appearance import Plane, Probe, probe_site, statistics
from harmofl.analysis.image_names import image_name
from harmofl.data.folder import ImageFolder
from harmofl.data.images import ImageSet, JoinedImages, LabelledImages, Parts, join_sets
from harmofl.data.listing import draw_places
from harmofl.devices import choose_device
from harmofl.errors import UsageError
from harmofl.events import StepDone, Watch, ignore
from harmofl.methods.amplitude_normalization import AmplitudeNormalization
from harmofl.methods.combinations import Mean
from harmofl.methods.layers import Band, check_band
from harmofl.settings import DataSettings, Settings
from harmofl.tasks.task import Task

BEFORE = "before"
"""The name of images as they are, among the names of bands."""

MOST_IMAGES = 500
"""Of a hospital, drawn at random: more of them change nothing that can be seen."""

LARGEST_KEPT = 2**28
"""Bytes of images that are kept in memory, all hospitals together; others are read, or made, once more."""

LARGEST_BATCH = 2**22
"""Numbers in a batch of images."""


def parse_band(text: str) -> Band:
    """A band as it is written on the command line."""
    try:
        number = float(text)
    except ValueError:
        value: object = text
    else:
        value = number
    try:
        return check_band(value)
    except ValueError as error:
        raise UsageError(f"band = {text!r}: must be {error}") from None


def has_colours(task: Task, data: DataSettings) -> bool:
    """Whether an image's channels are colours, and not neighbouring slices."""
    return task.picture_shape(data)[0] == 3 and data.neighbours == 0


class TaskImages:
    """What is known of a task's images before any is opened."""

    task: Task
    settings: Settings

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names."""
        return self.task.classes_of(self.settings.data)

    @property
    def is_colour(self) -> bool:
        """Whether an image's channels are colours."""
        return has_colours(self.task, self.settings.data)


class Hospitals(TaskImages):
    """The sites of a task, on a phantom or in a folder."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.task: Task = registry.tasks.find(settings.task)
        self.sites = self.task.sites_of(settings.data)
        self.source = self.task.open(settings.data)
        self._kept: dict[str, Parts] = {}

    def parts(self, site: str) -> Parts:
        """A site's images: train, val and test."""
        if site in self._kept:
            return self._kept[site]
        parts = self.source.parts(site)
        kept = [part for others in self._kept.values() for part in others]
        if sum(part.nbytes for part in (*kept, *parts)) <= LARGEST_KEPT:
            self._kept[site] = parts
        return parts

    def some(self, site: str) -> tuple[ImageSet, list[str]]:
        """Images of a site, of all three parts, drawn at random if they are many, and their names.

        A group of them is a patient.
        """
        parts = self.parts(site)
        images = join_sets(parts)
        assert isinstance(images, LabelledImages | JoinedImages)
        patients = self._patients(site, torch.cat([part.groups for part in parts]))
        images = replace(images, groups=first_of_same(images.groups, patients))  # in two parts they were two patients
        places = draw_places(len(images), min(len(images), MOST_IMAGES), self.settings.data.seed, site)
        names = [image_name(self.source, site, images, place) for place in places.tolist()]
        return images.at(places), names

    def _patients(self, site: str, groups: Tensor) -> Tensor:
        """Whose images they are."""
        return self.source.patients(site, groups) if isinstance(self.source, ImageFolder) else groups

    def batches(self, images: ImageSet) -> Iterator[LabelledImages]:
        """Images in batches that fit into memory, whatever their size."""
        channels, height, width = self.task.picture_shape(self.settings.data)
        return images.batches(max(1, LARGEST_BATCH // (channels * height * width)))


def first_of_same(numbers: Tensor, groups: Tensor) -> Tensor:
    """For each place, the smallest of the numbers at places of the same group."""
    places = torch.unique(groups, return_inverse=True)[1]
    smallest = numbers.new_zeros(len(numbers)).scatter_reduce(0, places, numbers, "amin", include_self=False)
    return smallest[places]


# --- harmonization -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Harmonization:
    """What a federation would share, and each site's own mean amplitude, the whole spectrum (C, H, W // 2 + 1)."""

    layers: Mapping[str, AmplitudeNormalization]
    """By the name of their band, with what all sites share."""
    amplitudes: Mapping[str, Tensor]
    shared: Tensor


def harmonization(
    hospitals: Hospitals, bands: Sequence[Band], device: str = "auto", watch: Watch = ignore
) -> Harmonization:
    """Measure every site's training images and take the mean over sites, as before round 1 of a federation."""
    place = choose_device(device)
    shape = hospitals.task.picture_shape(hospitals.settings.data)
    layers = {str(band): AmplitudeNormalization(shape, band).to(place) for band in (*bands, "full")}
    means = {name: Mean({}, len(hospitals.sites)) for name in layers}
    amplitudes = {}
    for number, site in enumerate(hospitals.sites):
        watch(StepDone(f"measuring the amplitudes of {site}", number, 2 * len(hospitals.sites)))
        train = hospitals.parts(site)[0]
        for name, layer in layers.items():
            layer.measure(batch.images.to(place) for batch in hospitals.batches(train))
            means[name].add(site, layer.measurement())
        amplitudes[site] = layers["full"].measurement()["amplitude"]
    for name, layer in layers.items():
        layer.receive(means[name].value())
        layer.freeze()
        layer.double()  # only now: what sites measure and share is single precision
    shared = layers["full"].measurement()["amplitude"]
    return Harmonization({str(band): layers[str(band)] for band in bands}, amplitudes, shared)


# --- images chosen by a rule ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """An image that stands for others: its mean intensity is their median."""

    name: str
    """Of its file, or its number."""
    image: Tensor
    """(C, H, W)."""
    target: Tensor
    """A class, or a mask (H, W)."""
    brightness: float
    out_of: int


def median_place(values: Tensor) -> int:
    """The place of the median; of an even number of values, the lower one of the two in the middle."""
    return int(values.argsort(stable=True)[(len(values) - 1) // 2])


def choose(images: ImageSet, names: Sequence[str], brightness: Tensor, members: Tensor) -> Chosen | None:
    """Choose, of some members of a set, the one of median brightness; None if there is no member."""
    places = members.nonzero().flatten()
    if not len(places):
        return None
    place = places[median_place(brightness[places])]
    loaded = images.load(place[None])
    return Chosen(names[int(place)], loaded.images[0], loaded.targets[0], float(brightness[place]), out_of=len(places))


def kinds_in(batch: LabelledImages) -> Tensor:
    """The class of each image; in segmentation 1 if its mask holds anything, else 0."""
    if batch.labels is not None:
        return batch.labels
    return (batch.targets > 0).flatten(1).any(dim=1).long()


@dataclass(frozen=True)
class Look:
    """What is shown of one site's images."""

    site: str
    example: Chosen
    """Of all images; in segmentation, of those whose mask holds anything."""
    samples: Mapping[str, Chosen | None]
    """One per class; in segmentation the example alone."""
    statistics: Mapping[str, Tensor]
    """(N, statistics) as they are and for each band."""
    groups: Tensor
    """(N,) whose images they are."""

    @property
    def num_patients(self) -> int:
        """How many patients the images are of."""
        return len(torch.unique(self.groups))


def look_at(hospitals: Hospitals, site: str, layers: Mapping[str, AmplitudeNormalization]) -> Look:
    """Choose images of a site and describe all that were drawn, as they are and harmonized."""
    images, image_names = hospitals.some(site)
    brightness, kinds = [], []
    described: dict[str, list[Tensor]] = {name: [] for name in ((BEFORE, *layers) if layers else ())}
    for batch in hospitals.batches(images):
        brightness.append(batch.images.mean(dim=(1, 2, 3)))
        kinds.append(kinds_in(batch))
        for name in described:
            described[name].append(statistics(harmonize(batch.images, layers.get(name))).cpu())
    means, kind = torch.cat(brightness), torch.cat(kinds)
    is_classification = hospitals.task.kind == "classification"
    telling = kind >= 0 if is_classification or not kind.any() else kind > 0
    example = choose(images, image_names, means, telling)
    assert example is not None  # a site has images
    names = hospitals.classes if is_classification else ()
    samples = {name: choose(images, image_names, means, kind == number) for number, name in enumerate(names)}
    values = {name: torch.cat(parts) for name, parts in described.items()}
    return Look(site, example, samples or {"": example}, values, images.groups)


def harmonize(images: Tensor, layer: AmplitudeNormalization | None) -> Tensor:
    """Harmonize images as for a network, but in double precision, so that no probe learns from rounding."""
    if layer is None:
        return images
    with torch.no_grad():
        result: Tensor = layer(images.to(layer.amplitude.device, torch.float64))
    return result


def looks_at(
    hospitals: Hospitals, layers: Mapping[str, AmplitudeNormalization] | None = None, watch: Watch = ignore
) -> list[Look]:
    """Choose and describe the images of every site."""
    looks, total = [], len(hospitals.sites)
    for number, site in enumerate(hospitals.sites):
        watch(StepDone(f"looking at the images of {site}", total + number, 2 * total))
        looks.append(look_at(hospitals, site, layers or {}))
    return looks


# --- all sites together --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Embedding:
    """Every image as a point, as it is and for each band, and what a probe makes of the statistics."""

    sites: Tensor
    """(N,) the number of each image's site."""
    common: Mapping[str, Tensor]
    """(N, 2) in the plane in which the images as they are differ most: how much of the differences is gone."""
    own: Mapping[str, Tensor]
    """(N, 2) in the plane in which these images themselves differ most: what is left, enlarged."""
    probes: Mapping[str, Probe]
    shares: Mapping[str, tuple[float, float]]
    """Of the variance along the two axes of each own plane."""


def embedding(looks: Sequence[Look], seed: int = 0) -> Embedding:
    """Put the statistics of all sites together."""
    sites = torch.cat([torch.full((len(look.groups),), number) for number, look in enumerate(looks)])
    groups = torch.cat([look.groups for look in looks])
    values = {name: torch.cat([look.statistics[name] for look in looks]) for name in looks[0].statistics}
    planes = {name: Plane.of(each) for name, each in values.items()}
    return Embedding(
        sites,
        {name: planes[BEFORE].places(each) for name, each in values.items()},
        {name: planes[name].places(each) for name, each in values.items()},
        {name: probe_site(each, sites, groups, seed) for name, each in values.items()},
        {name: plane.shares for name, plane in planes.items()},
    )
