"""Scores of predictions against the truth, from MONAI's metrics, over all images of a site."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from harmofl.data.images import LabelledImages

Scores = dict[str, float]


def classification_scores(logits: Sequence[Tensor], images: LabelledImages, thorough: bool) -> Scores:
    """Accuracy as the metric; AUC, sensitivity and specificity beside it (class 1 is the positive one)."""
    from monai.metrics import compute_roc_auc

    outputs, labels = torch.cat(list(logits)), images.targets
    positive = labels == 1
    predicted = outputs.argmax(dim=1)
    scores = {"metric": (predicted == labels).float().mean().item()}
    if positive.any() and not positive.all():  # else the other three say nothing
        scores |= {
            # Log-odds rank like probabilities but do not end at 1, where confident predictions would tie.
            "auc": float(compute_roc_auc(_log_odds(outputs), labels)),
            "sensitivity": (predicted == 1)[positive].float().mean().item(),
            "specificity": (predicted == 0)[~positive].float().mean().item(),
        }
    return scores


def _log_odds(outputs: Tensor) -> Tensor:
    return outputs[:, 1] - torch.cat([outputs[:, :1], outputs[:, 2:]], dim=1).logsumexp(dim=1)


def segmentation_scores(logits: Sequence[Tensor], images: LabelledImages, thorough: bool) -> Scores:
    """Dice per image as the metric; precision, recall, Dice per case, and HD95 (in pixels) if thorough."""
    from monai.metrics import get_confusion_matrix

    predicted = torch.cat([batch.argmax(dim=1) for batch in logits])
    found, truth = _foreground(predicted), _foreground(images.targets)
    counts = get_confusion_matrix(found, truth, include_background=False)[:, 0].double()
    hits, false_alarms, _, misses = counts.unbind(dim=1)
    scores = {
        "metric": dice(hits, false_alarms, misses).mean().item(),
        "precision": _rate(hits, false_alarms),
        "recall": _rate(hits, misses),
        "dice_per_case": dice(*(_per_group(c, images.groups) for c in (hits, false_alarms, misses))).mean().item(),
    }
    return scores | (_hd95(found, truth) if thorough else {})


def _foreground(classes: Tensor) -> Tensor:
    return F.one_hot((classes > 0).long(), 2).movedim(-1, 1)


def dice(hits: Tensor, false_alarms: Tensor, misses: Tensor) -> Tensor:
    """2·TP/(2·TP + FP + FN); 1 where truth and prediction are both empty."""
    total = 2 * hits + false_alarms + misses
    return torch.where(total == 0, 1.0, 2 * hits / total.clamp_min(1))


def _rate(hits: Tensor, errors: Tensor) -> float:
    total = hits.sum() + errors.sum()
    return float(hits.sum() / total) if total > 0 else 1.0


def _per_group(counts: Tensor, groups: Tensor) -> Tensor:
    _, places = torch.unique(groups, return_inverse=True)
    return torch.zeros(int(places.max()) + 1, dtype=counts.dtype).index_add_(0, places, counts)


def _hd95(found: Tensor, truth: Tensor) -> Scores:
    """The mean over images where both truth and prediction have something, if there is any."""
    from monai.metrics import compute_hausdorff_distance

    both = found[:, 1].flatten(1).any(dim=1) & truth[:, 1].flatten(1).any(dim=1)
    if not both.any():
        return {}
    with warnings.catch_warnings():  # MONAI calls its own deprecated function
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*get_mask_edges.*")
        return {"hd95": compute_hausdorff_distance(found[both], truth[both], percentile=95).mean().item()}
