"""What is predicted in classification: probabilities for each image, and one table for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harmofl.data.scans import Scan
from harmofl.errors import RunError
from harmofl.inference.inputs import Input
from harmofl.inference.outcomes import Case, Outcome
from harmofl.inference.outputs import write_table
from harmofl.inference.volume_windows import open_windows
from harmofl.inference.windows import ScanWindows
from harmofl.settings import DataSettings
from harmofl.tasks.task import Task

TABLE = "predictions.csv"


@dataclass(frozen=True)
class Classes:
    """Classification: probabilities for each image, and one table for all."""

    task: Task
    data: DataSettings
    table: Path
    training_images: Mapping[str, Any] | None = None

    def written_before(self) -> list[Path]:
        """The table."""
        return [self.table] if self.table.exists() else []

    def windows(self, image: Input, scan: Scan) -> ScanWindows:
        """Each slice, or the volume, scaled."""
        return open_windows(scan, self.data, self.task.image_shape(self.data)[0], resize=True, overlap=0)

    def outcome(self, case: Case, logits: Iterator[Tensor]) -> Outcome:
        """The mean over slices; a picture has one."""
        classes = self.task.classes_of(self.data)
        chances = torch.stack([torch.softmax(each, dim=0) for each in logits]).mean(dim=0)
        named = dict(zip(classes, chances.tolist(), strict=True))
        return Outcome(case.image.name, self.table, label=classes[int(chances.argmax())], probabilities=named)

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Write the table, a row for each image, if there is any."""
        if not outcomes:
            return
        classes = self.task.classes_of(self.data)
        head = ["image", "class", *(f"p_{name}" for name in classes), "error"]
        try:
            write_table(self.table, [head, *(_row(outcome, classes) for outcome in outcomes)])
        except OSError as error:
            raise RunError(f"{self.table}: {error.strerror or error}") from error


def _row(outcome: Outcome, classes: Sequence[str]) -> list[str]:
    chances = [f"{outcome.probabilities[name]:.6f}" if outcome.probabilities else "" for name in classes]
    return [outcome.image, outcome.label, *chances, outcome.error]
