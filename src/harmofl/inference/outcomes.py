"""One image on its way through a model: what is known of it, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from harmofl.data.scans import Scan
from harmofl.inference.inputs import Input
from harmofl.inference.windows import ScanWindows
from harmofl.settings import DataSettings


@dataclass(frozen=True)
class Outcome:
    """What became of one image."""

    image: str
    """As its user wrote it, or as it was found in a folder."""
    output: Path | None = None
    """The mask, or the table of classes; None if there is none."""
    error: str = ""
    label: str = ""
    """The most likely class, in classification."""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """By class, in classification."""
    overlay: Path | None = None
    notes: tuple[str, ...] = ()
    """What a careful owner would want to know about the file."""
    left_out: str = ""
    """Why a file or folder met in a folder was not predicted; that is no error."""


@dataclass(frozen=True, eq=False)
class Case:
    """One image on its way."""

    number: int
    image: Input
    scan: Scan
    windows: ScanWindows


class OutputKind(Protocol):
    """What a task's predictions are: what the model sees of an image, and what is written of its logits."""

    @property
    def data(self) -> DataSettings:
        """How images are prepared."""

    @property
    def training_images(self) -> Mapping[str, Any] | None:
        """How the training images were stored, if the model's description says so."""

    def written_before(self) -> list[Path]:
        """The files of an earlier prediction that would be replaced."""

    def windows(self, image: Input, scan: Scan) -> ScanWindows:
        """What the model sees of a scan."""

    def outcome(self, case: Case, logits: Iterator[Tensor]) -> Outcome:
        """Write what the logits of all windows say of an image."""

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Write what is made of all images together; some are missing if the prediction was interrupted."""
