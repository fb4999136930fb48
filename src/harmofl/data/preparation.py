"""From a scan to what the network sees: intensities in [0, 1], one size. Training and prediction share it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from harmofl.data.scans import Mask, Pixels, Scan, UnreadableError
from harmofl.data.windows import pad_to_size
from harmofl.settings import DataSettings

Planes = NDArray[np.unsignedinteger]
"""(P, C, H, W) uint8 or uint16; the largest value of the type stands for 1."""

GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""How much red, green and blue count for brightness (ITU-R BT.601)."""

LARGEST = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}


def scale_to_unit_range(scan: Scan, data: DataSettings) -> Planes:
    """Colours and intensities as the settings say, as integers; over all slices of a scan together."""
    pixels = _colored(scan.pixels, data.color)
    if data.intensity == "auto" and pixels.dtype == np.uint8:
        return pixels
    kind = scan.geometry.kind
    is_color = (
        not scan.separate_channels
        and pixels.shape[1] == 3
        and (kind == "picture" or (kind == "dicom" and scan.pixels.shape[1] == 3))
    )
    limits = [
        _limits(part, data.intensity) for part in ([pixels] if is_color else np.split(pixels, pixels.shape[1], 1))
    ]
    low, high = (np.array(ends, dtype=np.float32).reshape(1, -1, 1, 1) for ends in zip(*limits, strict=True))
    scaled = pixels.astype(np.float32)
    scaled -= low
    scaled *= np.divide(65535, high - low, out=np.zeros_like(high), where=high > low)
    return _rounded(scaled, np.dtype(np.uint16))


def _limits(pixels: Pixels, intensity: str | list[float]) -> tuple[float, float]:
    """What becomes 0 and 1: of colours together, of other channels each for itself, as they may be in other units."""
    if isinstance(intensity, list):
        return intensity[0], intensity[1]
    low, highest = float(pixels.min()), float(pixels.max())
    if intensity == "range":
        return low, highest
    high = float(np.percentile(pixels, 99))
    return low, high if high > low else highest  # an almost empty image keeps the little that it has


def _colored(pixels: Pixels, color: str) -> Pixels:
    channels = pixels.shape[1]
    if color == "as-is" or channels == {"grey": 1, "rgb": 3}[color]:
        return pixels
    if color == "rgb" and channels == 1:
        return np.repeat(pixels, 3, axis=1)
    if color == "grey" and channels == 3:
        grey = np.einsum("schw,c->shw", pixels.astype(np.float32), GREY)[:, None]
        return _rounded(grey, pixels.dtype) if pixels.dtype == np.uint8 else grey
    raise UnreadableError(f"{channels} channels cannot be made {color} (data.color)")


def _rounded(values: Pixels, dtype: np.dtype[Any]) -> Planes:
    np.rint(np.clip(values, 0, LARGEST[dtype], out=values), out=values)  # in place, as a volume may be large
    rounded: Planes = values.astype(dtype)
    return rounded


def widen(planes: Planes) -> Planes:
    """The same values in 16 bits: 255 becomes 65535 exactly."""
    return planes if planes.dtype == np.uint16 else planes.astype(np.uint16) * np.uint16(257)


def to_tensor(planes: Planes) -> Tensor:
    """Values from 0 to 1 as the network takes them."""
    return torch.from_numpy(planes).to(torch.float32).div_(float(LARGEST[planes.dtype]))


@dataclass(frozen=True)
class Fit:
    """How images of one height and width become squares of one size: scaled, or cut into tiles."""

    height: int
    width: int
    size: int
    resize: bool

    def images(self, planes: Planes) -> Planes:
        """(S, C, height, width) to (S · tiles, C, size, size), tile by tile of each slice."""
        return self._resized(planes) if self.resize else self._tiled(planes)

    def masks(self, masks: Mask) -> Mask:
        """(S, height, width) to (S · tiles, size, size); labels are never mixed."""
        if not self.resize:
            return self._tiled(masks[:, None])[:, 0]
        if self._fits:
            return masks
        values = torch.from_numpy(masks.astype(np.float64))[:, None]
        resized = F.interpolate(values, (self.size, self.size), mode="nearest-exact")
        return resized[:, 0].numpy().astype(masks.dtype)

    @property
    def tiles(self) -> int:
        """Tiles per image."""
        return 1 if self.resize else len(_starts(self.height, self.size)) * len(_starts(self.width, self.size))

    @property
    def _fits(self) -> bool:
        return (self.height, self.width) == (self.size, self.size)

    def _resized(self, planes: Planes) -> Planes:
        if self._fits:
            return planes
        values = torch.from_numpy(planes.astype(np.float32))
        resized = F.interpolate(values, (self.size, self.size), mode="bilinear", antialias=True).numpy()
        return _rounded(resized, planes.dtype)

    def _tiled(self, planes: Pixels) -> Pixels:
        planes = pad_to_size(planes, (self.size, self.size))
        height, width = planes.shape[-2:]
        windows = [
            planes[..., top : top + self.size, left : left + self.size]
            for top in _starts(height, self.size)
            for left in _starts(width, self.size)
        ]
        return np.stack(windows, axis=1).reshape(-1, planes.shape[1], self.size, self.size)


def _starts(length: int, size: int) -> list[int]:
    """Where windows begin that cover a length, as few as can be and evenly spread."""
    count = math.ceil(length / size)
    return [round(start) for start in np.linspace(0, max(0, length - size), count).tolist()]
