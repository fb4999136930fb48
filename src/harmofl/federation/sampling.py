"""Which image of a site is shown to whoever watches a run, and what the model finds on it."""

from __future__ import annotations

import torch
from torch import Tensor

from harmofl.data.images import LabelledImages
from harmofl.runs.live_samples import LiveSample


def take_sample(
    batch: LabelledImages, logits: Tensor, classes: tuple[str, ...], site: str, round_number: int
) -> LiveSample:
    """What a model found on one of a site's images: always the same one of a batch, with much in its mask."""
    place = _most_telling(batch)
    predicted = logits[place].argmax(dim=0).cpu()
    truth, found = (_say(part, classes) for part in (batch.targets[place], predicted))
    return LiveSample(site, round_number, batch.images[place].cpu(), truth, found)


def _most_telling(batch: LabelledImages) -> int:
    return 0 if batch.labels is not None else int((batch.targets > 0).flatten(1).sum(dim=1).argmax())


def _say(part: Tensor, classes: tuple[str, ...]) -> Tensor | str:
    return classes[int(part)] if part.ndim == 0 else part.to(torch.uint8)
