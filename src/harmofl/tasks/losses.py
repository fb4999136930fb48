"""What training lowers; the segmentation losses are MONAI's.

Dice is taken over the batch, not per image: a slice without foreground then still gives a useful gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch.nn.functional as F
from torch import Tensor

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


LOSSES: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "dice": dice_loss,
    "dice-cross-entropy": dice_and_cross_entropy,
}
"""By the name in the settings."""
