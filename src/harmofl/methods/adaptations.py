"""What a site does with a model before it is used on that site's images: to validate, to test, to predict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from harmofl.methods.model import Model
from harmofl.methods.pieces import Piece


class Adaptation(Piece):
    """Uses a model as it was received: the base of all adaptations.

    Example:
        >>> class LastBatchOnly(Adaptation):
        ...     at_every_site = True
        ...     def adapt(self, model, images):
        ...         pool_statistics(model, list(images)[-1:])
    """

    at_every_site: ClassVar[bool] = False
    """Whether sites that took part adapt the model too, to their training images: each then has a model of its own."""

    note: ClassVar[str] = ""
    """What a table says of a score at a hospital that took no part, if the model was changed for it."""

    def adapt(self, model: Model, images: Iterable[Tensor]) -> None:
        """Change a model for a hospital's images.

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
        pool_statistics(model, images)


@dataclass(frozen=True)
class SiteStatistics(Adaptation):
    """Every site estimates batch norm statistics afresh on its own images, for the weights it received.

    Averaged statistics belong to no weights at all, and fit no site that looks different: after averaging, each site
    takes means and variances over all its training images, in one pass without gradients and in a fixed order. What is
    trained and what travels stays as it is.
    """

    at_every_site = True
    note = "statistics estimated on its own unlabelled images"

    def adapt(self, model: Model, images: Iterable[Tensor]) -> None:
        """Pool the statistics over all images."""
        pool_statistics(model, images)


@torch.no_grad()
def pool_statistics(model: nn.Module, images: Iterable[Tensor]) -> None:
    """Set the statistics of the batch norm layers to mean and variance over all images, batches (N, C, H, W) of them.

    First and second moments are summed over batches, so that what differs between batches counts in the variance. A
    layer sees what those before it make of a batch with that batch's own statistics, as in training. A batch of one
    image has no say unless it is the only one. The model is left in eval mode.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    moments = {layer: Moments() for layer in layers}
    model.eval()
    hooks = [layer.register_forward_pre_hook(lambda layer, inputs: moments[layer].add(inputs[0])) for layer in layers]
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0  # nothing is written until the end
        layer.train()
    try:
        for number, batch in enumerate(images):
            if len(batch) > 1 or number == 0:  # one image alone has no variance where features are 1 × 1
                model(batch)
    finally:
        for layer, hook, momentum in zip(layers, hooks, before, strict=True):
            hook.remove()
            layer.momentum = momentum
        model.eval()
    for layer in layers:
        moments[layer].write_to(layer)


class Moments:
    """Sums over images and pixels, per channel, in double precision."""

    def __init__(self) -> None:
        self.count = 0
        self.sums = self.squares = torch.zeros(())

    def add(self, features: Tensor) -> None:
        """Take features (N, C, …)."""
        values = features.transpose(0, 1).flatten(1).double()
        self.count += values.shape[1]
        self.sums = self.sums + values.sum(dim=1).cpu()
        self.squares = self.squares + values.square().sum(dim=1).cpu()

    def write_to(self, layer: _BatchNorm) -> None:
        """Set a layer's running statistics; the variance is the unbiased one, as in training.

        A layer that no image reached, such as one of an auxiliary output, stays as it is.
        """
        if self.count == 0:
            return
        assert layer.running_mean is not None
        assert layer.running_var is not None
        mean = self.sums / self.count
        variance = (self.squares / self.count - mean.square()).clamp_min(0) * self.count / max(1, self.count - 1)
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)
