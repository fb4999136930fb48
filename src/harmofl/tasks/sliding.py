"""A model on images of any size: volumes window by window, blended; and averaged over mirror images, if wanted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, islice

import torch
from torch import Tensor, nn

from harmofl.data.windows import WindowGrid
from harmofl.devices import to_device
from harmofl.settings import Settings


class Mirrored(nn.Module):
    """The mean of a model's logits over an image and its mirror images, along every combination of its axes.

    >>> model = Mirrored(nn.Identity())
    >>> images = torch.rand(1, 2, 4, 4)
    >>> torch.allclose(model(images), images)
    True
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images (N, C, *spatial); those of masks are turned back before they are averaged."""
        axes = range(2, images.ndim)
        total: Tensor = self.model(images)
        turns = list(chain.from_iterable(combinations(axes, count) for count in range(1, len(axes) + 1)))
        for turn in turns:
            logits: Tensor = self.model(images.flip(turn))
            total = total + (logits.flip(turn) if logits.ndim == images.ndim else logits)
        return total / (len(turns) + 1)


def predict_images(model: nn.Module, images: Tensor, settings: Settings, device: torch.device) -> Tensor:
    """The logits of a batch, on the CPU; images larger or smaller than the network's input go window by window."""
    size = settings.data.input_size
    if settings.data.dimensions == 2 or tuple(images.shape[2:]) == size:
        logits: Tensor = model(to_device(images, device)).cpu()
        return logits
    grid = WindowGrid(tuple(images.shape[2:]), size, settings.prediction.overlap)
    return torch.stack([grid.join(_logits_of_windows(model, volume, grid, settings, device)) for volume in images])


def _logits_of_windows(
    model: nn.Module, volume: Tensor, grid: WindowGrid, settings: Settings, device: torch.device
) -> Iterator[Tensor]:
    windows = (torch.from_numpy(window) for window in grid.cut(volume.numpy()))
    while batch := list(islice(windows, settings.training.batch_size)):
        yield from model(to_device(torch.stack(batch), device)).float().cpu()
