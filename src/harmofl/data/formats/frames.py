"""Where the frames of DICOM files lie in the body, their order, and the affine that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harmofl.data.scans import UnreadableError

Vector = NDArray[np.float64]

TO_RAS = np.diag([-1.0, -1.0, 1.0])
"""DICOM's axes lead to the left, the back and the head; NIfTI's to the right, the front and the head."""
NO_POSITION = "it does not say how it lies in the body; its slices are taken as stored"
NO_SPACING = "it does not say how large its pixels are; its slices are taken as stored"


@dataclass(frozen=True)
class Place:
    """A plane in the body, in DICOM's axes."""

    position: Vector
    """Of the first pixel's centre."""
    directions: Vector
    """Of growing columns and of growing rows, (2, 3)."""
    spacing: Vector | None
    """Between columns and between rows; None where the file does not say."""
    thickness: float

    @property
    def normal(self) -> Vector:
        """Perpendicular to the plane, of length one."""
        return np.cross(*self.directions)


@dataclass(frozen=True)
class Frame:
    """One frame: which file and frame it is, its number, and where it lies if the file says so."""

    file: int
    index: int
    number: int | None = None
    place: Place | None = None


def frame_count(header: Any) -> int:
    """How many frames a file announces."""
    return int(header.get("NumberOfFrames") or 1)


def list_frames(headers: Sequence[Any]) -> list[Frame]:
    """Every frame of every file, in the order of reading."""
    return [frame for file, header in enumerate(headers) for frame in _list_frames(header, file)]


def _list_frames(header: Any, file: int) -> list[Frame]:
    count = frame_count(header)
    groups = list(header.get("PerFrameFunctionalGroupsSequence") or [])
    if groups and len(groups) != count:
        raise UnreadableError(f"announces {count} frames and describes {len(groups)}")
    if count > 1 and not groups:  # one position cannot be that of many frames
        return [Frame(file, frame) for frame in range(count)]
    number = numbers(value_of(header, None, "", "InstanceNumber"), 1)
    label = int(number[0]) if number is not None and count == 1 else None
    return [Frame(file, frame, label, _place(header, groups[frame] if groups else None)) for frame in range(count)]


def _place(header: Any, group: Any) -> Place | None:
    def look(sequence: str, name: str, count: int) -> Vector | None:
        return numbers(value_of(header, group, sequence, name), count)

    position = look("PlanePositionSequence", "ImagePositionPatient", 3)
    directions = look("PlaneOrientationSequence", "ImageOrientationPatient", 6)
    if position is None or directions is None:
        return None
    pair = directions.reshape(2, 3)
    if not np.allclose(pair @ pair.T, np.eye(2), atol=0.01):
        return None  # not of length one, or not at right angles
    spacing = look("PixelMeasuresSequence", "PixelSpacing", 2)
    if spacing is not None:  # the distance between rows stands first
        spacing = spacing[::-1] if (spacing > 0).all() else None
    sizes = [look("PixelMeasuresSequence", name, 1) for name in ("SpacingBetweenSlices", "SliceThickness")]
    thickness = next((float(abs(size[0])) for size in sizes if size is not None and size[0]), 1.0)
    return Place(position, pair, spacing, thickness)


def value_of(header: Any, group: Any, sequence: str, name: str) -> Any:
    """A tag of one frame, of all frames together or of the file, whichever is there."""
    shared = header.get("SharedFunctionalGroupsSequence")
    for holder in (group, shared[0] if shared else None):
        inner = holder.get(sequence) if holder is not None else None
        if inner and name in inner[0]:
            return inner[0].get(name)
    try:
        return header.get(name)
    except ValueError:  # a text where a number belongs
        return None


def numbers(value: Any, count: int) -> Vector | None:
    """This many finite numbers, or None."""
    try:
        vector = np.array(value, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        return None
    return vector if len(vector) == count and np.isfinite(vector).all() else None


def sort_frames(frames: list[Frame]) -> tuple[list[Frame], tuple[str, ...]]:
    """Slices along their normal, with notes; without positions by their numbers; without those as read."""
    places = [frame.place for frame in frames if frame.place is not None]
    if len(frames) > 1 and len(places) == len(frames):
        order, notes = _along_the_normal(places)
        return [frames[index] for index in order], notes
    labels = [frame.number for frame in frames if frame.number is not None]
    if len(set(labels)) == len(frames):
        return sorted(frames, key=lambda frame: frame.number or 0), ()
    return frames, ()


def _along_the_normal(places: Sequence[Place]) -> tuple[list[int], tuple[str, ...]]:
    directions = np.stack([place.directions for place in places])
    if not np.allclose(directions, directions[0], atol=0.01):
        raise UnreadableError("its slices are not parallel")
    heights = np.array([place.position @ places[0].normal for place in places])
    order = np.argsort(heights, kind="stable")
    gaps = np.diff(heights[order])
    if gaps.min() < 1e-3:
        raise UnreadableError("several of its slices lie at one place (times or echoes?); give each as its own series")
    even = gaps.max() - gaps.min() <= 0.01 + 0.01 * gaps.mean()
    note = f"its slices are not evenly spaced: {gaps.min():.3g} to {gaps.max():.3g} mm apart"
    return [int(index) for index in order], () if even else (note,)


def affine_of(frames: Sequence[Frame]) -> tuple[Vector | None, tuple[str, ...]]:
    """Of an array (columns, rows, slices), in NIfTI's axes; None, with a note, if the files do not say."""
    places = [frame.place for frame in frames if frame.place is not None]
    if len(places) < len(frames):
        return None, (NO_POSITION,)
    first, last = places[0], places[-1]
    if first.spacing is None:
        return None, (NO_SPACING,)
    step = first.normal * first.thickness
    if len(places) > 1:
        step = (last.position - first.position) / (len(places) - 1)
    affine = np.eye(4)
    affine[:3, :3] = TO_RAS @ np.column_stack([*(first.directions * first.spacing[:, None]), step])
    affine[:3, 3] = TO_RAS @ first.position
    return affine, ()
