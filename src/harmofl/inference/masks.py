"""What is predicted in segmentation: a mask on each image, and if wanted a picture of both."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from harmofl.data.preparation import scale_to_unit_range
from harmofl.data.scans import Mask, Scan
from harmofl.inference.inputs import Input
from harmofl.inference.outcomes import Case, Outcome
from harmofl.inference.outputs import refuse_to_replace, write_labels, write_series_labels, written_before
from harmofl.inference.overlays import write_overlay
from harmofl.inference.volume_windows import open_windows
from harmofl.inference.windows import ScanWindows
from harmofl.settings import DataSettings
from harmofl.tasks.task import Task

MASK, OVERLAY = "_mask", "_overlay"


@dataclass(frozen=True)
class Masks:
    """Segmentation: a mask on each image, and if wanted a picture of both."""

    task: Task
    data: DataSettings
    stems: Mapping[Path, Path]
    """From an image to its output, without suffix."""
    overlap: float = 0.25
    overlay: bool = False
    dicom_seg: bool = False
    training_images: Mapping[str, Any] | None = None

    def written_before(self) -> list[Path]:
        """Masks, and overlays if there are to be any, of the names of those to be written.

        What lies among the images may be a person's own: it is never replaced, and that is said image by image.
        """
        stems = [self._stem(path, kind) for path in self.stems for kind in self._kinds]
        return written_before(stem for stem in stems if os.path.realpath(stem.parent) not in self.image_folders)

    @property
    def _kinds(self) -> tuple[str, ...]:
        return (MASK, OVERLAY) if self.overlay else (MASK,)

    @cached_property
    def image_folders(self) -> frozenset[str]:
        """Where the images lie."""
        return frozenset(os.path.realpath(path.parent) for path in self.stems)

    def windows(self, image: Input, scan: Scan) -> ScanWindows:
        """The slices, or the volume, as in training: scaled, or in parts that overlap."""
        for kind in self._kinds:
            refuse_to_replace(self._stem(image.path, kind), self.image_folders)
        channels = self.task.image_shape(self.data)[0]
        resize = self.data.resize and self.data.dimensions == 2
        return open_windows(scan, self.data, channels, resize, self.overlap)

    def outcome(self, case: Case, logits: Iterator[Tensor]) -> Outcome:
        """Write the mask."""
        labels, classes = case.windows.labels(logits), self.task.classes_of(self.data)
        stem = self._stem(case.image.path, MASK)
        if self.dicom_seg and case.scan.geometry.kind == "dicom":
            path = write_series_labels(stem, labels, case.image.files or case.image.path, classes)
        else:
            path = write_labels(stem, labels, case.scan, classes)
        return Outcome(case.image.name, path, overlay=self._draw_overlay(case, labels) if self.overlay else None)

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing is left to write: every mask is a file of its own."""

    def _draw_overlay(self, case: Case, labels: Mask) -> Path:
        stem = self._stem(case.image.path, OVERLAY)
        path = stem.with_name(f"{stem.name}.png")
        planes = scale_to_unit_range(case.scan, self.data)
        classes = self.task.classes_of(self.data)
        write_overlay(path, case.image.path.name, planes, labels, classes, case.scan.geometry)
        return path

    def _stem(self, image: Path, kind: str) -> Path:
        stem = self.stems[image]
        return stem.with_name(stem.name + kind)
