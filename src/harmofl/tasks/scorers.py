"""Predictions against the truth, from MONAI's metrics, batch by batch over all images of a site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from harmofl.data.images import LabelledImages
from harmofl.tasks.surfaces import Surfaces, surface_distances

Scores = dict[str, float]
MISSING = "distances_missing"
"""How many images and classes have no distance, as either the truth or the prediction is empty."""
NONE = torch.empty(0)


class Scorer(Protocol):
    """Takes predictions as they come; only numbers are kept, so that memory does not grow with the images."""

    def add(self, logits: Tensor, batch: LabelledImages) -> None:
        """Take the logits, (N, classes) or (N, classes, H, W), of a batch; `batch.targets` are the classes."""

    def scores(self) -> Scores:
        """The scores over all that was added, by name."""


ScorerFactory = Callable[[Sequence[str], bool], Scorer]
"""From the names of the classes, and whether slow scores are wanted too, to a scorer."""


class ClassificationScorer:
    """Accuracy, AUC, sensitivity and specificity.

    Of two classes, the second is the positive one; of more, the three are means over one class against the rest.
    """

    def __init__(self, classes: Sequence[str], thorough: bool) -> None:
        self._num_classes = len(classes)
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    def add(self, logits: Tensor, batch: LabelledImages) -> None:
        """Keep the logits: a few numbers per image."""
        self._logits.append(logits)
        self._labels.append(batch.targets)

    def scores(self) -> Scores:
        """Accuracy, and the other three where both sides of a class occur."""
        logits, labels = torch.cat(self._logits), torch.cat(self._labels)
        scores = {"accuracy": (logits.argmax(dim=1) == labels).float().mean().item()}
        positives = (1,) if self._num_classes == 2 else range(self._num_classes)
        each = [found for found in (_against_the_rest(logits, labels, label) for label in positives) if found]
        names = each[0] if each else {}
        return scores | {name: sum(found[name] for found in each) / len(each) for name in names}


def _against_the_rest(logits: Tensor, labels: Tensor, label: int) -> Scores:
    """AUC, sensitivity and specificity of one class; nothing if it is all or none of the images."""
    from monai.metrics import compute_roc_auc

    positive = labels == label
    if not positive.any() or positive.all():
        return {}
    predicted = logits.argmax(dim=1) == label
    return {
        # Log-odds rank like probabilities but do not end at 1, where confident predictions would tie.
        "auc": float(compute_roc_auc(_log_odds(logits, label), positive.long())),
        "sensitivity": predicted[positive].float().mean().item(),
        "specificity": (~predicted)[~positive].float().mean().item(),
    }


def _log_odds(logits: Tensor, label: int) -> Tensor:
    others = torch.cat([logits[:, :label], logits[:, label + 1 :]], dim=1)
    return logits[:, label] - others.logsumexp(dim=1)


class SegmentationScorer:
    """Dice per image, precision, recall, Dice per case, and distances between surfaces if thorough.

    HD95 is in pixels. Of volumes, HD95, the mean distance and the surface Dice are in millimetres.

    `dice_with_background` counts the background as one more class: easy to get right, it lifts the score.

    With several foreground classes, Dice and HD95 are means over them, and each one's, `dice_NAME`, stands beside.
    """

    def __init__(self, classes: Sequence[str], thorough: bool) -> None:
        self._num_classes = len(classes)
        self._names = classes[1:]
        self._thorough = thorough
        self._counts: list[Tensor] = []
        self._groups: list[Tensor] = []
        self._distances: list[Surfaces] = []

    def add(self, logits: Tensor, batch: LabelledImages) -> None:
        """Count hits, false alarms and misses of every image and class."""
        found = logits.argmax(dim=1)
        self._counts.append(count_pixels(found, batch.targets, self._num_classes))
        self._groups.append(batch.groups)
        if self._thorough:
            self._distances.append(surface_distances(found, batch.targets, self._num_classes, batch.spacings))

    def scores(self) -> Scores:
        """Every score over all images."""
        counts = torch.cat(self._counts)  # (N, classes, 4)
        hits, false_alarms, _, misses = counts[:, 1:].unbind(dim=2)  # each (N, foreground classes)
        groups = torch.cat(self._groups)
        per_class = dice(hits, false_alarms, misses)
        per_case = dice(*(_per_group(counts, groups) for counts in (hits, false_alarms, misses)))
        scores = {
            "dice": per_class.mean().item(),
            "precision": _rate(hits, false_alarms),
            "recall": _rate(hits, misses),
            "dice_per_case": per_case.mean().item(),
            "dice_with_background": _dice_of_all_classes(counts).mean().item(),
        }
        if self._num_classes > 2:
            values = per_class.mean(dim=0).tolist()
            scores |= {f"dice_{name}": value for name, value in zip(self._names, values, strict=True)}
        return scores | self._surface_scores()

    def _surface_scores(self) -> Scores:
        """The means over images and classes where both truth and prediction have something, if there is any.

        How many of them have something in one of the two only, and so no distance, stands beside.
        """
        names = dict.fromkeys(name for found in self._distances for name in found.distances)
        each = {name: torch.cat([found.distances.get(name, NONE) for found in self._distances]) for name in names}
        missing = sum(found.missing for found in self._distances)
        return {name: values.mean().item() for name, values in each.items()} | ({MISSING: missing} if missing else {})


def count_pixels(found: Tensor, truth: Tensor, num_classes: int) -> Tensor:
    """Hits, false alarms, right rejections and misses, (N, classes, 4); one class at a time, as volumes are large.

    `found` and `truth`: classes, (N, *spatial).
    """
    counts = torch.empty(len(found), num_classes, 4, dtype=torch.float64)
    spatial = tuple(range(1, found.ndim))
    for number in range(num_classes):
        one, other = found == number, truth == number
        hits, predicted, there = (mask.sum(dim=spatial) for mask in (one & other, one, other))
        rejections = found[0].numel() - predicted - there + hits
        counts[:, number] = torch.stack([hits, predicted - hits, rejections, there - hits], dim=1)
    return counts


def dice(hits: Tensor, false_alarms: Tensor, misses: Tensor) -> Tensor:
    """2·TP/(2·TP + FP + FN); 1 where truth and prediction are both empty."""
    total = 2 * hits + false_alarms + misses
    return torch.where(total == 0, 1.0, 2 * hits / total.clamp_min(1))


def _dice_of_all_classes(counts: Tensor) -> Tensor:
    hits, false_alarms, _, misses = counts.unbind(dim=2)
    return dice(hits, false_alarms, misses)


def _rate(hits: Tensor, errors: Tensor) -> float:
    total = hits.sum() + errors.sum()
    return float(hits.sum() / total) if total > 0 else 1.0


def _per_group(counts: Tensor, groups: Tensor) -> Tensor:
    _, places = torch.unique(groups, return_inverse=True)
    sums = torch.zeros(int(places.max()) + 1, *counts.shape[1:], dtype=counts.dtype)
    return sums.index_add_(0, places, counts)
