"""What a site does with a model before it is used on that site's images: to validate, to test, to predict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from harmofl.methods.model import Model
from harmofl.methods.pieces import Piece


class Adaptation(Piece):
    """Uses a model as it was received: the base of all adaptations."""

    note = ""
    """What a table says of a score at a hospital that took no part, if the model was changed for it."""

    def adapt(self, model: Model, images: Iterable[Tensor]) -> None:
        """Change a model for a hospital that has no layers of its own in it.

        `images`: batches (N, C, H, W) of its unlabelled images.
        """

    def __repr__(self) -> str:
        return "as_received"


as_received = Adaptation()


@dataclass(frozen=True)
class OwnLayers(Adaptation):
    """Sites that took part use the layers they kept; others estimate batch norm statistics on their own images."""

    note = "statistics re-estimated on its own unlabelled images, with the sites' mean batch norm weights"

    def adapt(self, model: Model, images: Iterable[Tensor]) -> None:
        """Estimate the statistics of every batch norm layer."""
        estimate_statistics(model, images)


def estimate_statistics(model: nn.Module, images: Iterable[Tensor]) -> None:
    """Set the running statistics of the batch norm layers to the mean over batches of images (N, C, H, W).

    The model is left in eval mode.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    model.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over batches
        layer.train()
    with torch.no_grad():
        for number, batch in enumerate(images):
            if len(batch) > 1 or number == 0:  # one image alone has no variance where features are 1 × 1
                model(batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.eval()
