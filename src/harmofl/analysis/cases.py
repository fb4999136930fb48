"""Test images that show what finished runs can and cannot do, chosen by a rule that favours no method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harmofl import registry
from harmofl.analysis.hospitals import TaskImages
from harmofl.analysis.image_names import image_name
from harmofl.analysis.loaded_runs import open_images
from harmofl.data.images import ImageSet, LabelledImages
from harmofl.devices import threads, to_device
from harmofl.events import StepDone, Watch, ignore
from harmofl.methods.model import Model
from harmofl.runs.finished import FinishedRun
from harmofl.runs.site_models import models_for
from harmofl.states import evaluating
from harmofl.tasks.scorers import dice
from harmofl.tasks.scoring import scored_together

Scores = NDArray[np.float64]

WORDS = ("best", "median", "worst")


# --- their test images ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """One test image."""

    site: str
    number: int
    """Among the site's test images, from 0 on."""
    name: str
    """Of its file, or its number."""


class Gallery(TaskImages):
    """The test images of some runs, and what each run's model for the site makes of them."""

    def __init__(self, runs: Sequence[FinishedRun], device: str = "auto", watch: Watch = ignore) -> None:
        self.runs = runs
        self.task = registry.tasks.find(runs[0].task)
        self.device = device
        self._watch = watch
        self.task.picture_shape(runs[0].full_settings.data)  # refuses volumes
        self._source, self.settings = open_images(self.task, runs[0].full_settings, runs[0].facts, watch)
        self.sites = self.task.sites_of(self.settings.data)
        self.images: dict[str, ImageSet] = {site: self._source.parts(site)[2] for site in self.sites}

    @cached_property
    def places(self) -> list[Place]:
        """Every test image, site by site."""
        return [
            Place(site, number, image_name(self._source, site, images, number))
            for site, images in self.images.items()
            for number in range(len(images))
        ]

    def image(self, place: Place) -> LabelledImages:
        """One test image with its truth."""
        return self.images[place.site].load(torch.tensor([place.number]))

    def outputs(self, run: FinishedRun) -> Iterator[tuple[LabelledImages, Tensor]]:
        """All test images in batches, in the order of `places`, with the run's logits."""
        for number, site in enumerate(self.sites):
            done = self.runs.index(run) * len(self.sites) + number
            total = len(self.runs) * len(self.sites)
            self._watch(StepDone(f"{run.title} at {site}", done, total))
            with self._model(run, site) as model:
                images = self.images[site]
                for places in scored_together(len(images), run.full_settings):
                    batch = images.load(places)
                    yield batch, _logits(model, batch)

    def output(self, run: FinishedRun, place: Place) -> Tensor:
        """The run's logits for one image (classes, …), computed in the batch that it is scored in."""
        images = self.images[place.site]
        batches = scored_together(len(images), run.full_settings)
        places = next(places for places in batches if place.number in places)
        with self._model(run, place.site) as model:
            return _logits(model, images.load(places))[place.number - int(places[0])]

    @contextmanager
    def _model(self, run: FinishedRun, site: str) -> Iterator[Model]:
        """The model that a run has for a site, which took part; on as many threads as the run was scored with."""
        with threads(run.full_settings.federation.threads):
            (model,) = models_for(run.model, site, self.images[site], run.full_settings, device=self.device).models
            with evaluating(model):
                yield model


def _logits(model: Model, batch: LabelledImages) -> Tensor:
    logits: Tensor = model(to_device(batch.images, next(model.parameters()).device)).cpu()
    return logits


# --- segmentation: by the Dice score -------------------------------------------------------------------------------


def dice_per_image(logits: Tensor, truth: Tensor) -> Tensor:
    """The Dice score of each image (N,), the mean over foreground classes."""
    labels = logits.argmax(dim=1)
    scores = []
    for label in range(1, logits.shape[1]):
        predicted, true = (labels == label).flatten(1), (truth == label).flatten(1)
        counts = (predicted & true, predicted & ~true, ~predicted & true)
        scores.append(dice(*(count.sum(dim=1).double() for count in counts)))
    return torch.stack(scores).mean(dim=0)


def dice_table(gallery: Gallery) -> tuple[Scores, NDArray[np.bool_]]:
    """The Dice score of every run (rows) on every test image (columns), and which images have anything to find."""
    rows, filled = [], np.zeros(0, dtype=np.bool_)
    for run in gallery.runs:
        scores, masks = [], []
        for batch, logits in gallery.outputs(run):
            scores.append(dice_per_image(logits, batch.targets))
            masks.append((batch.targets > 0).flatten(1).any(dim=1))
        rows.append(torch.cat(scores).numpy())
        filled = torch.cat(masks).numpy()
    return np.stack(rows), filled


def extremes(scores: Scores, among: Sequence[int]) -> dict[str, int]:
    """Of some columns, the one whose mean over rows is highest, the median and lowest; of equals, the first.

    The median of an even number is the better one of the two in the middle.
    """
    if not among:
        return {}
    means = scores.mean(axis=0)
    best_first = sorted(among, key=lambda column: -means[column])
    worst_first = sorted(among, key=lambda column: means[column])
    return dict(zip(WORDS, (best_first[0], best_first[(len(among) - 1) // 2], worst_first[0]), strict=True))


@dataclass(frozen=True)
class Case:
    """A chosen test image, with every run's mask and Dice score."""

    word: str
    place: Place
    image: Tensor
    truth: Tensor
    masks: Mapping[str, Tensor]
    scores: Mapping[str, float]

    @property
    def mean(self) -> float:
        """What it was chosen by."""
        return float(np.mean(list(self.scores.values())))


def choose_cases(gallery: Gallery, scores: Scores, among: Sequence[int]) -> list[Case]:
    """Choose the best, the median and the worst of some test images."""
    return [_case(gallery, word, column, scores) for word, column in extremes(scores, among).items()]


def _case(gallery: Gallery, word: str, column: int, scores: Scores) -> Case:
    place = gallery.places[column]
    loaded = gallery.image(place)
    return Case(
        word,
        place,
        loaded.images[0],
        loaded.targets[0],
        {run.title: gallery.output(run, place).argmax(dim=0) for run in gallery.runs},
        {run.title: float(score) for run, score in zip(gallery.runs, scores[:, column], strict=True)},
    )


# --- classification: by the confidence -----------------------------------------------------------------------------

SHOWN = 2
"""Images of each kind and run."""
KINDS = ("surest and right", "least sure", "surest and wrong")


@dataclass(frozen=True)
class Guess:
    """A run's opinion of a test image."""

    place: Place
    image: Tensor
    truth: int
    probabilities: tuple[float, ...]

    @property
    def label(self) -> int:
        """The class that it takes the image for."""
        return int(np.argmax(self.probabilities))


def telling_images(logits: Tensor, truth: Tensor) -> dict[str, list[int]]:
    """Places of images that show most of a classifier; it is surer, the further its first class is ahead.

    The gap between the two highest logits does not end at 1, where the probabilities of many images do.
    """
    highest = logits.double().topk(2, dim=1)
    gaps, right = highest.values[:, 0] - highest.values[:, 1], highest.indices[:, 0] == truth
    kinds = ((right, -gaps), (torch.ones_like(right), gaps), (~right, -gaps))
    return {name: _first(members, order) for name, (members, order) in zip(KINDS, kinds, strict=True)}


def _first(members: Tensor, order: Tensor) -> list[int]:
    places = members.nonzero().flatten()
    chosen: list[int] = places[order[places].argsort(stable=True)][:SHOWN].tolist()
    return chosen


def guesses(gallery: Gallery, run: FinishedRun) -> dict[str, list[Guess]]:
    """Of all test images, those of which a run is surest and right, least sure, and surest and wrong."""
    each = [(logits, batch.targets) for batch, logits in gallery.outputs(run)]
    logits, truth = (torch.cat(parts) for parts in zip(*each, strict=True))
    places = gallery.places
    probabilities = logits.double().softmax(dim=1)

    def guess(column: int) -> Guess:
        image = gallery.image(places[column]).images[0]
        return Guess(places[column], image, int(truth[column]), tuple(probabilities[column].tolist()))

    return {kind: [guess(column) for column in columns] for kind, columns in telling_images(logits, truth).items()}
