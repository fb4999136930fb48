"""Masks or classes for new images, from a model's folder."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from harmofl.data.folder import Watch, silent
from harmofl.data.formats import read_scan, read_series
from harmofl.data.formats.segmentations import NO_EXTRA
from harmofl.data.layouts.tree import printable
from harmofl.data.looks import look_of, strangeness
from harmofl.data.preparation import in_unit_range
from harmofl.data.scans import Mask, Scan, UnreadableError
from harmofl.devices import CHANNELS_LAST, choose_device, to_device
from harmofl.errors import RunError, UsageError
from harmofl.inference.inputs import Input, find_inputs
from harmofl.inference.outputs import (
    output_stems,
    refuse_to_replace,
    write_labels,
    write_series_labels,
    write_table,
    written_before,
)
from harmofl.inference.overlays import write_overlay
from harmofl.inference.windows import Windows
from harmofl.methods.method import Method
from harmofl.runs.model_folder import open_model, read_description
from harmofl.settings import DataSettings
from harmofl.states import evaluating
from harmofl.tasks.task import Task

log = logging.getLogger(__name__)

TABLE, MASK, OVERLAY = "predictions.csv", "_mask", "_overlay"
DEPENDS_ON_BATCH = (
    "this model's norm layers use the statistics of the batch: a prediction depends on the images beside it"
)
NO_OVERLAY = "--overlay: there is nothing to draw for a model that gives classes"


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


def predict(
    model_folder: Path,
    images: Sequence[str | Path],
    out: Path,
    site: str | None = None,
    overlay: bool = False,
    device: str = "auto",
    batch_size: int | None = None,
    dicom_seg: bool = False,
    overlap: float = 0.25,
    method: Method | None = None,
    watch: Watch = silent,
    overwrite: bool = False,
) -> list[Outcome]:
    """Write a mask for every image, or one table of classes; an image that cannot be used does not stop the others.

    The outcomes of all images come first, then one for everything that was left out of folders (`left_out`).

    `images`: files, folders, patterns. `site`: whose model, where each site has its own. `overlap`: of neighbouring
    windows in images larger than the network's input, as a part of their size. `overwrite`: replace what an earlier
    prediction wrote there.
    """
    _check(batch_size, overlap, dicom_seg)
    model, task, settings, _ = open_model(model_folder, site, method)
    trained = read_description(model_folder).get("training_images")
    met = find_inputs(images, out)
    inputs = [each for each in met if not each.left_out]
    left_out = [Outcome(each.name, left_out=each.left_out) for each in met if each.left_out]
    work: ClassWork | MaskWork
    if task.kind == "classification":
        work = ClassWork(task, settings.data, out / TABLE, trained)
    else:
        existing = [each.path for each in inputs if not each.error]
        stems = dict(zip(existing, output_stems(existing, out), strict=True))
        work = MaskWork(task, settings.data, stems, overlap, overlay, dicom_seg, trained)
    if not overwrite:
        _refuse_to_write_again(work.written_before())
    _make_folder(out)
    if settings.model.norm == "batch-statistics":
        log.warning(DEPENDS_ON_BATCH)
    if overlay and task.kind == "classification":
        log.warning(NO_OVERLAY)
    place = choose_device(device)
    model.to(place, memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
    network = Computation(model, batch_size or settings.training.batch_size, place)
    if isinstance(work, ClassWork):
        return _predict_classes(network, work, inputs, watch) + left_out
    return each_outcome(network, work, inputs, watch, {}) + left_out


def _check(batch_size: int | None, overlap: float, dicom_seg: bool) -> None:
    if not 0 <= overlap <= 0.9:
        raise UsageError(f"overlap = {overlap}: must be from 0 to 0.9")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size = {batch_size}: must be 1 or more")
    if dicom_seg and importlib.util.find_spec("highdicom") is None:
        raise UsageError(NO_EXTRA)


def _refuse_to_write_again(paths: Sequence[Path]) -> None:
    if paths:
        more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
        raise UsageError(f"{paths[0]} is there already{more}: choose another --out, or replace it with --overwrite")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror or error}") from None


@dataclass(frozen=True, eq=False)
class Case:
    """One image on its way."""

    number: int
    image: Input
    scan: Scan
    windows: Windows


@dataclass(frozen=True)
class Computation:
    """A model, and how its images are brought to it."""

    model: nn.Module
    batch_size: int
    device: torch.device

    def logits(self, cases: Iterable[Case]) -> Iterator[tuple[Case, Tensor]]:
        """The logits of every window of every case, in order; a batch may hold windows of several cases."""
        windows = ((case, window) for case in cases for window in case.windows)
        while batch := list(islice(windows, self.batch_size)):
            images = torch.stack([window for _, window in batch])
            logits = self.model(to_device(images, self.device)).float().cpu()
            yield from zip([case for case, _ in batch], logits, strict=True)


class Work(Protocol):
    """What is done for each image, before and after the model."""

    @property
    def data(self) -> DataSettings:
        """How images are prepared."""

    @property
    def trained(self) -> Mapping[str, Any] | None:
        """How the training images were stored, where the model remembers it."""

    def windows(self, image: Input, scan: Scan) -> Windows:
        """What the model sees of a scan."""

    def outcome(self, case: Case, logits: Iterator[Tensor]) -> Outcome:
        """Make something of the logits of all windows."""


def each_outcome(
    network: Computation, work: Work, inputs: Sequence[Input], watch: Watch, outcomes: dict[int, Outcome]
) -> list[Outcome]:
    """Bring every image through the model; the outcomes are in the order of the inputs.

    `outcomes`: takes each as it comes, by its number, for those who must know what was done when all was interrupted.
    """

    def note(number: int, outcome: Outcome) -> None:
        outcomes[number] = outcome
        shown = printable(outcome.image)  # not every terminal takes a name that is no text
        watch({"phase": "predict", "done": len(outcomes), "total": len(inputs), "image": shown})

    def cases() -> Iterator[Case]:
        for number, image in enumerate(inputs):
            try:
                scan = _read(image)
                case = Case(number, image, scan, work.windows(image, scan))
            except Exception as error:  # whatever is wrong with one image, the others are done
                log.debug("%s failed", image.name, exc_info=error)
                note(number, Outcome(image.name, error=_words(error)))
            else:
                yield case

    watch({"phase": "predict", "done": 0, "total": len(inputs), "image": ""})
    with evaluating(network.model):
        for case, group in groupby(network.logits(cases()), key=itemgetter(0)):
            try:
                outcome = work.outcome(case, (logits for _, logits in group))
            except Exception as error:
                log.debug("%s failed", case.image.name, exc_info=error)
                outcome = Outcome(case.image.name, error=_words(error))
            strange = strangeness(look_of(case.scan), work.trained, work.data)
            note(case.number, replace(outcome, notes=case.scan.geometry.notes + strange))
    return [outcomes[number] for number in range(len(inputs))]


def _read(image: Input) -> Scan:
    if image.error:
        raise UnreadableError(image.error)
    return read_series(image.files) if image.files else read_scan(image.path)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "too large for the memory of this computer"
    return str(error) if isinstance(error, UnreadableError) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class MaskWork:
    """Segmentation: a mask on each image, and if wanted a picture of both."""

    task: Task
    data: DataSettings
    stems: Mapping[Path, Path]
    """From an image to its output, without suffix."""
    overlap: float = 0.25
    overlay: bool = False
    dicom_seg: bool = False
    trained: Mapping[str, Any] | None = None

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

    def windows(self, image: Input, scan: Scan) -> Windows:
        """The slices as in training: scaled, or in parts that overlap."""
        for kind in self._kinds:
            refuse_to_replace(self._stem(image.path, kind), self.image_folders)
        channels = self.task.image_shape(self.data)[0]
        return Windows(scan, self.data, channels, self.data.resize, self.overlap)

    def outcome(self, case: Case, logits: Iterator[Tensor]) -> Outcome:
        """Write the mask."""
        labels, classes = case.windows.labels(logits), self.task.classes_of(self.data)
        stem = self._stem(case.image.path, MASK)
        if self.dicom_seg and case.scan.geometry.kind == "dicom":
            path = write_series_labels(stem, labels, case.image.files or case.image.path, classes)
        else:
            path = write_labels(stem, labels, case.scan, classes)
        return Outcome(case.image.name, path, overlay=self._drawn(case, labels) if self.overlay else None)

    def _drawn(self, case: Case, labels: Mask) -> Path:
        stem = self._stem(case.image.path, OVERLAY)
        path = stem.with_name(f"{stem.name}.png")
        planes = in_unit_range(case.scan, self.data)
        classes = self.task.classes_of(self.data)
        write_overlay(path, case.image.path.name, planes, labels, classes, case.scan.geometry)
        return path

    def _stem(self, image: Path, kind: str) -> Path:
        stem = self.stems[image]
        return stem.with_name(stem.name + kind)


@dataclass(frozen=True)
class ClassWork:
    """Classification: probabilities for each image, and one table for all."""

    task: Task
    data: DataSettings
    table: Path
    trained: Mapping[str, Any] | None = None

    def written_before(self) -> list[Path]:
        """The table."""
        return [self.table] if self.table.exists() else []

    def windows(self, image: Input, scan: Scan) -> Windows:
        """Each slice, scaled."""
        return Windows(scan, self.data, self.task.image_shape(self.data)[0], resize=True, overlap=0)

    def outcome(self, case: Case, logits: Iterator[Tensor]) -> Outcome:
        """The mean over slices; a picture has one."""
        classes = self.task.classes_of(self.data)
        chances = torch.stack([torch.softmax(each, dim=0) for each in logits]).mean(dim=0)
        named = dict(zip(classes, chances.tolist(), strict=True))
        return Outcome(case.image.name, self.table, label=classes[int(chances.argmax())], probabilities=named)


def _predict_classes(network: Computation, work: ClassWork, inputs: Sequence[Input], watch: Watch) -> list[Outcome]:
    done: dict[int, Outcome] = {}
    try:
        return each_outcome(network, work, inputs, watch, done)
    finally:  # also when it was interrupted, which may be after hours
        if done:
            _write_classes(work, [done[number] for number in sorted(done)])


def _write_classes(work: ClassWork, outcomes: Sequence[Outcome]) -> None:
    classes = work.task.classes_of(work.data)
    head = ["image", "class", *(f"p_{name}" for name in classes), "error"]
    try:
        write_table(work.table, [head, *(_row(outcome, classes) for outcome in outcomes)])
    except OSError as error:
        raise RunError(f"{work.table}: {error.strerror or error}") from error


def _row(outcome: Outcome, classes: Sequence[str]) -> list[str]:
    chances = [f"{outcome.probabilities[name]:.6f}" if outcome.probabilities else "" for name in classes]
    return [outcome.image, outcome.label, *chances, outcome.error]
