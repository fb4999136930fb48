"""One picture or volume in memory, whatever its file format was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[Any]
Mask = NDArray[Any]

VIEWS = ("sagittal", "coronal", "axial")
"""What slices are called, by the body axis that they follow: left-right, back-front, feet-head."""


class Note(NamedTuple):
    """What a careful owner would want to know about a file that can be read."""

    about: Literal["image", "mask", "grid"]
    """The file; "grid" is about a mask that may not lie on its image, which every command shows."""
    text: str


class UnreadableError(Exception):
    """A file that cannot be read, and why, in words for its owner; it does not name the file."""


@dataclass(frozen=True)
class Geometry:
    """How a scan lay in its file, so that a mask can be written back to the same place."""

    kind: Literal["picture", "nifti", "dicom"] = "picture"
    affine: NDArray[np.float64] | None = None
    """Of the array as it is stored (NIfTI), or from the slices' positions (DICOM); (4, 4)."""
    stored_shape: tuple[int, ...] = ()
    """Of the array as it is stored."""
    orientation: NDArray[np.float64] | None = None
    """nibabel's transform from the stored array to the slices; None: they are stored in this order."""
    axis: int | None = None
    """The body axis that the slices follow (0 left-right, 1 back-front, 2 feet-head); None: the file does not say."""
    notes: tuple[str, ...] = field(default=())
    """What a careful owner would want to know about the file."""

    @property
    def is_placed(self) -> bool:
        """Whether the file says where it lies in the body."""
        return self.axis is not None


@dataclass(frozen=True)
class Scan:
    """Slices (S, C, H, W) of one file or series: uint8 as stored, every other type as float32; a picture has S = 1."""

    pixels: Pixels
    geometry: Geometry = Geometry()
    separate_channels: bool = False
    """Whether its channels are files of their own, and never colours."""

    @property
    def is_volume(self) -> bool:
        """Whether it has more than one slice to put together again."""
        return len(self.pixels) > 1 or self.geometry.kind != "picture"


@dataclass(frozen=True)
class ScanMask:
    """Labels (S, H, W) of a scan, pixel on pixel, in the smallest type of whole numbers that holds them."""

    labels: Mask
    notes: tuple[Note, ...] = ()
