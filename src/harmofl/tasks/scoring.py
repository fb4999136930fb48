"""A model's scores over a set of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harmofl.data.images import ImageSet, LabelledImages, split_into_batches
from harmofl.data.prefetch import prefetch
from harmofl.data.volumes import VolumeSet
from harmofl.errors import UsageError
from harmofl.methods.model import Model
from harmofl.settings import Settings
from harmofl.tasks.scorers import Scorer, Scores
from harmofl.tasks.scores import Score
from harmofl.tasks.sliding import Mirrored, predict_images
from harmofl.tasks.task import Task

Look = Callable[[LabelledImages, Tensor], None]
"""Is shown a batch and its logits."""


class UndefinedScoreError(UsageError):
    """The chosen score has no value here, as a distance to what was not found."""


def score(
    model: Model, task: Task, settings: Settings, images: ImageSet, thorough: bool, look: Look | None = None
) -> Scores:
    """Return loss, metric and other scores of a model in eval mode over all images.

    A batch is in memory at a time, and one more is read meanwhile if the images are not there yet. `look`: is shown
    the first batch.
    """
    device = next(model.parameters()).device
    used = Mirrored(model) if settings.prediction.mirror else model
    loss, scorers, total = task.loss(settings), task.scorers(settings, thorough), 0.0
    one_by_one = isinstance(images, VolumeSet)  # they may differ in size
    together = torch.arange(len(images)).split(1) if one_by_one else scored_together(len(images), settings)  # type: ignore[no-untyped-call]
    batches = (images.load(places) for places in together)
    for batch in batches if isinstance(images, LabelledImages) else prefetch(batches):
        with torch.inference_mode():
            logits = predict_images(used, batch.images, settings, device)
            total += float(loss(logits, batch.targets)) * len(batch)
            for scorer in scorers:
                scorer.add(logits, batch)
        if look:
            look(batch, logits)
            look = None
    return {"loss": total / len(images)} | collect(scorers, task.score_for(settings))


def scored_together(num_images: int, settings: Settings) -> list[Tensor]:
    """The places of the images that a model sees in one batch.

    Where it normalizes with statistics of the batch, a last image does not stand alone: it would have no variance
    where features are 1 × 1.
    """
    order, size = torch.arange(num_images), settings.training.batch_size
    if settings.model.norm == "batch-statistics":
        return split_into_batches(order, max(2, size))
    return list(torch.split(order, size))


def collect(scorers: Sequence[Scorer], main: Score) -> Scores:
    """The scores of all scorers by name; the main one, under the name `metric`, comes first."""
    values = {name: value for scorer in scorers for name, value in scorer.scores().items()}
    if main.name not in values:
        raise UndefinedScoreError(f"training.score = {main.name!r}: it is not defined for these images and predictions")
    return {"metric": values.pop(main.name)} | values
