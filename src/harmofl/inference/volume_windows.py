"""From a volume to the windows that a network for volumes sees, and from their logits back to its own voxels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from harmofl.data.preparation import to_tensor
from harmofl.data.resampling import labels_on_scan
from harmofl.data.scans import Mask, Scan
from harmofl.data.volume_decoding import check_is_volume, fit_volume, grid_volume
from harmofl.data.windows import WindowGrid
from harmofl.inference.windows import ScanWindows, Windows, check_channels
from harmofl.settings import DataSettings


def open_windows(scan: Scan, data: DataSettings, channels: int, resize: bool, overlap: float) -> ScanWindows:
    """What a model sees of a scan: slices or parts of them, or parts of a volume; the whole of it for a class."""
    if data.dimensions == 2:
        return Windows(scan, data, channels, resize, overlap)
    return WholeVolume(scan, data, channels) if resize else VolumeWindows(scan, data, channels, overlap)


class VolumeWindows:
    """Windows of a volume on the common grid, which overlap; prepared as in training, each on its own."""

    def __init__(self, scan: Scan, data: DataSettings, channels: int, overlap: float) -> None:
        check_is_volume(scan)
        self.scan = scan
        self.volume = grid_volume(scan, data)
        check_channels(len(self.volume.values), channels, data)
        self.grid = WindowGrid(self.volume.values.shape[1:], data.input_size, overlap)

    def __iter__(self) -> Iterator[Tensor]:
        """Each window as the network takes it, (C, D, H, W)."""
        for window in self.grid.cut(self.volume.values):
            yield to_tensor(np.ascontiguousarray(window))

    def labels(self, logits: Iterator[Tensor]) -> Mask:
        """The most likely class of every voxel (S, H, W) of the scan, from the logits of all windows in order."""
        return labels_on_scan(self.grid.join(logits), self.volume.affine, self.scan)


class WholeVolume:
    """A volume brought to the network's size, as a class is true of the whole of it only."""

    def __init__(self, scan: Scan, data: DataSettings, channels: int) -> None:
        check_is_volume(scan)
        volume = grid_volume(scan, data).values
        check_channels(len(volume), channels, data)
        self.volume = fit_volume(volume, data.input_size, data.spacing is not None)

    def __iter__(self) -> Iterator[Tensor]:
        """The one window."""
        yield to_tensor(self.volume)

    def labels(self, logits: Iterator[Tensor]) -> Mask:
        """Nothing: there are no masks."""
        raise NotImplementedError("a class belongs to the whole volume")
