"""From a scan to the windows that a network sees, and from their logits back to the scan.

Windows are prepared as in training, each on its own: whatever a harmonizer does to a tile of a training image, it does
to a window. The slices of a volume follow one another, and of a slice the windows row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harmofl.data.preparation import Fit, Planes, scale_to_unit_range, to_tensor
from harmofl.data.scans import Mask, Scan, UnreadableError
from harmofl.data.windows import importance, pad_to_size, starts
from harmofl.settings import DataSettings

LABEL = np.uint16


class ScanWindows(Protocol):
    """What a model sees of one scan, and what its logits say of it."""

    def __iter__(self) -> Iterator[Tensor]:
        """Each window as the network takes it."""

    def labels(self, logits: Iterator[Tensor]) -> Mask:
        """The most likely class of every pixel (S, H, W), from the logits of all windows in order."""


class Windows:
    """The windows of one scan: its slices scaled to the network's size, or parts of them that overlap."""

    def __init__(self, scan: Scan, data: DataSettings, channels: int, resize: bool, overlap: float) -> None:
        planes = scale_to_unit_range(scan, data)
        check_channels(planes.shape[1], channels, data)
        self.shape = (planes.shape[0], *planes.shape[2:])
        self.size, self.neighbours, self.resize = data.size, data.neighbours, resize
        self.planes = _resize(planes, data.size) if resize else pad_to_size(planes, data.input_size)
        height, width = self.planes.shape[-2:]
        self.tops, self.lefts = starts(height, data.size, overlap), starts(width, data.size, overlap)

    def __iter__(self) -> Iterator[Tensor]:
        """Each window as the network takes it, (C, size, size)."""
        last = len(self.planes) - 1
        for number in range(last + 1):
            # A slice with those around it as channels; the end slices are their own neighbours, as in training.
            rows = np.arange(number - self.neighbours, number + self.neighbours + 1).clip(0, last)
            for top in self.tops:
                for left in self.lefts:
                    window = self.planes[rows, :, top : top + self.size, left : left + self.size]
                    yield to_tensor(np.ascontiguousarray(window).reshape(-1, self.size, self.size))

    def labels(self, logits: Iterator[Tensor]) -> Mask:
        """The most likely class of every pixel (S, H, W), from the logits of all windows in order."""
        slices, height, width = self.shape
        labels = np.empty(self.shape, dtype=LABEL)
        for number in range(slices):
            labels[number] = (
                self._resize_back(next(logits)) if self.resize else self._join_windows(logits)[:height, :width]
            )
        return labels

    def _resize_back(self, logits: Tensor) -> Mask:
        if logits.shape[-2:] != self.shape[1:]:
            logits = F.interpolate(logits[None], self.shape[1:], mode="bilinear", antialias=True)[0]
        return logits.argmax(dim=0).numpy()

    def _join_windows(self, logits: Iterator[Tensor]) -> Mask:
        """Labels of a padded slice, from windows of which the middle counts most.

        The same as the mean of MONAI's sliding window, but only the logits of one row of windows are held: a slide
        has more pixels than its logits would leave room for.
        """
        if len(self.tops) == len(self.lefts) == 1:
            return next(logits).argmax(dim=0).numpy()
        height, width = self.planes.shape[-2:]
        labels = np.empty((height, width), dtype=LABEL)
        weights, total = importance(self.size, self.size), torch.zeros(())
        for top, following in zip(self.tops, [*self.tops[1:], height], strict=True):
            for left in self.lefts:
                window = next(logits)
                if total.ndim == 0:
                    total = torch.zeros(len(window), self.size, width)
                total[:, :, left : left + self.size] += weights * window
            done = following - top
            # The sum of the weights is the same for every class: the largest sum is the largest mean.
            labels[top:following] = total[:, :done].argmax(dim=0).numpy()
            total = torch.cat([total[:, done:], torch.zeros_like(total[:, :done])], dim=1)
        return labels


def _resize(planes: Planes, size: int) -> Planes:
    """Slice by slice, as scaling takes four bytes a pixel."""
    height, width = planes.shape[-2:]
    fit = Fit(height, width, size, resize=True)
    return np.concatenate([fit.images(planes[number : number + 1]) for number in range(len(planes))])


def check_channels(found: int, channels: int, data: DataSettings) -> None:
    """Refuse a scan with another number of channels than the model takes."""
    wanted = channels // (2 * data.neighbours + 1)
    if found != wanted:
        has = "1 channel" if found == 1 else f"{found} channels"
        how = {1: "save the image as grey", 3: "save the image as RGB"}.get(
            wanted, "give images like those of training, or a table that names the file of each channel"
        )
        raise UnreadableError(f"{has}, the model takes {wanted}: {how} (its data.color is '{data.color}')")
