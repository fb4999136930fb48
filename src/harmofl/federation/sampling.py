"""Which image of a site is shown to whoever watches a run, and what the model finds on it."""

from __future__ import annotations

import torch
from torch import Tensor

from harmofl.data.images import ImageSet, LabelledImages
from harmofl.methods.model import Model
from harmofl.runs.live_samples import LiveSample
from harmofl.settings import Settings
from harmofl.tasks.sliding import predict_images
from harmofl.tasks.task import Task


def take_sample(
    model: Model, task: Task, settings: Settings, images: ImageSet, site: str, round_number: int
) -> LiveSample:
    """What a model in eval mode finds on one of a site's images: always the same one, with much in its mask."""
    batch = images.load(torch.arange(min(len(images), settings.training.batch_size)))
    place = _most_telling(batch)
    device = next(model.parameters()).device
    # The whole batch, as the statistics of layers may be the batch's.
    predicted = predict_images(model, batch.images, settings, device).argmax(dim=1)[place].cpu()
    classes = task.classes_of(settings.data)
    truth, found = (_say(part, classes) for part in (batch.targets[place], predicted))
    return LiveSample(site, round_number, batch.images[place].cpu(), truth, found)


def _most_telling(batch: LabelledImages) -> int:
    return 0 if batch.labels is not None else int((batch.targets > 0).flatten(1).sum(dim=1).argmax())


def _say(part: Tensor, classes: tuple[str, ...]) -> Tensor | str:
    return classes[int(part)] if part.ndim == 0 else part.to(torch.uint8)
