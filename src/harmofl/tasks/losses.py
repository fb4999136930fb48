"""What training lowers; the segmentation losses are MONAI's.

Dice is taken over the batch, not per image: a slice without foreground then still gives a useful gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from harmofl.registry import Kind

Loss = Callable[[Tensor, Tensor], Tensor]


@cache
def _loss(name: str) -> Any:
    import monai.losses

    return getattr(monai.losses, name)(include_background=False, to_onehot_y=True, softmax=True, batch=True)


def dice_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """1 − soft Dice of the foreground."""
    loss: Tensor = _loss("DiceLoss")(logits, masks[:, None])
    return loss


def dice_and_cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    """Cross-entropy plus 1 − soft Dice."""
    loss: Tensor = _loss("DiceCELoss")(logits, masks[:, None])
    return loss


@cache
def _joint_loss() -> Any:
    import monai.losses

    return monai.losses.DiceCELoss(to_onehot_y=True, softmax=True, batch=True, lambda_dice=0.5, lambda_ce=0.5)


def half_of_both(logits: Tensor, masks: Tensor) -> Tensor:
    """Mean of cross-entropy and 1 − soft Dice of all classes, the background too: HarmoFL's released code."""
    loss: Tensor = _joint_loss()(logits, masks[:, None])
    return loss


@dataclass(frozen=True)
class LossEntry:
    """A loss that can be chosen by its name (`training.loss`).

    Attributes:
        name: what users call it.
        kinds: what it is for.
        compute: from logits (N, classes) or (N, classes, H, W), and the classes (N) or (N, H, W) that are right, to
            one number.

    >>> import torch
    >>> entry = LossEntry("smooth", ("classification",), lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1))
    >>> entry.compute(torch.zeros(1, 2), torch.tensor([0]))  # log 2
    tensor(0.6931)
    """

    name: str
    kinds: tuple[Kind, ...]
    compute: Loss


cross_entropy = LossEntry("cross-entropy", ("classification", "segmentation"), F.cross_entropy)
dice = LossEntry("dice", ("segmentation",), dice_loss)
dice_cross_entropy = LossEntry("dice-cross-entropy", ("segmentation",), dice_and_cross_entropy)
joint = LossEntry("joint", ("segmentation",), half_of_both)
