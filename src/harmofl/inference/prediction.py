"""Masks or classes for new images, from a model's folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from harmofl.data.channels import join_channels
from harmofl.data.formats import read_scan, read_series
from harmofl.data.formats.segmentations import WRITING
from harmofl.data.layouts.tree import printable
from harmofl.data.looks import describe_strangeness, look_of
from harmofl.data.scans import Scan, UnreadableError
from harmofl.devices import check_device, choose_device, move_model, to_device
from harmofl.errors import UsageError
from harmofl.events import StepDone, Watch, ignore
from harmofl.extras import require
from harmofl.files import what_failed
from harmofl.inference.classes import TABLE, Classes
from harmofl.inference.inputs import Input, find_inputs
from harmofl.inference.masks import Masks
from harmofl.inference.outcomes import Case, Outcome, OutputKind
from harmofl.inference.outputs import output_stems
from harmofl.methods.method import Method
from harmofl.runs.model_folder import open_model, read_description
from harmofl.states import evaluating
from harmofl.tasks.sliding import Mirrored

logger = logging.getLogger(__name__)

DEPENDS_ON_BATCH = (
    "this model's norm layers use the statistics of the batch: a prediction depends on the images beside it"
)
NO_OVERLAY = "--overlay: there is nothing to draw for a model that gives classes"


def predict(
    model_folder: Path,
    images: Sequence[str | Path],
    out: Path,
    site: str | None = None,
    overlay: bool = False,
    device: str = "auto",
    batch_size: int | None = None,
    dicom_seg: bool = False,
    overlap: float | None = None,
    method: Method | None = None,
    watch: Watch = ignore,
    overwrite: bool = False,
    mirror: bool | None = None,
) -> list[Outcome]:
    """Write a mask for every image, or one table of classes; an image that cannot be used does not stop the others.

    The outcomes of all images come first, then one for everything that was left out of folders (`left_out`).

    `images`: files, folders, patterns. `site`: whose model, where each site has its own. `overlap`: of neighbouring
    windows in images larger than the network's input, as a part of their size; `mirror`: average over mirror images;
    both as the model's settings say unless given. `overwrite`: replace what an earlier prediction wrote there.
    """
    check_device(device)
    _check(batch_size, overlap, overlay, dicom_seg)
    model, task, settings, _ = open_model(model_folder, site, method)
    overlap = settings.prediction.overlap if overlap is None else overlap
    trained = read_description(model_folder).get("training_images")
    found = find_inputs(images, out)
    inputs = [each for each in found if not each.left_out]
    kind: OutputKind
    if task.kind == "classification":
        kind = Classes(task, settings.data, out / TABLE, trained)
    else:
        stems = output_stems([each.path for each in inputs if not each.error], out)
        kind = Masks(task, settings.data, stems, overlap, overlay, dicom_seg, trained)
    if not overwrite:
        _refuse_to_write_again(kind.written_before())
    _make_folder(out)
    if settings.model.norm == "batch-statistics":
        logger.warning(DEPENDS_ON_BATCH)
    if overlay and task.kind == "classification":
        logger.warning(NO_OVERLAY)
    place = choose_device(device)
    move_model(model, place)
    used = Mirrored(model) if (settings.prediction.mirror if mirror is None else mirror) else model
    network = Computation(used, batch_size or settings.training.batch_size, place)
    left_out = [Outcome(each.name, left_out=each.left_out) for each in found if each.left_out]
    return predict_each(network, kind, inputs, watch) + left_out


def _check(batch_size: int | None, overlap: float | None, overlay: bool, dicom_seg: bool) -> None:
    if overlap is not None and not 0 <= overlap <= 0.9:
        raise UsageError(f"overlap = {overlap}: must be from 0 to 0.9")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size = {batch_size}: must be 1 or more")
    if dicom_seg:
        require("dicom-seg", WRITING)
    if overlay:
        require("reports", "--overlay")


def _refuse_to_write_again(paths: Sequence[Path]) -> None:
    if paths:
        more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
        raise UsageError(f"{paths[0]} already exists{more}: choose another --out, or replace it with --overwrite")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror or error}") from None


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


def predict_each(network: Computation, kind: OutputKind, inputs: Sequence[Input], watch: Watch) -> list[Outcome]:
    """Bring every image through the model; the outcomes are in the order of the inputs."""
    outcomes: dict[int, Outcome] = {}

    def note(number: int, outcome: Outcome) -> None:
        outcomes[number] = outcome
        shown = printable(outcome.image)  # not every terminal takes a name that is no text
        watch(StepDone(shown, len(outcomes), len(inputs)))

    def cases() -> Iterator[Case]:
        for number, image in enumerate(inputs):
            try:
                scan = read_input(image)
                case = Case(number, image, scan, kind.windows(image, scan))
            except Exception as error:  # whatever is wrong with one image, the others are done
                note(number, _failure(image, error))
            else:
                yield case

    watch(StepDone("", 0, len(inputs)))
    try:
        with evaluating(network.model):
            for case, group in groupby(network.logits(cases()), key=itemgetter(0)):
                try:
                    outcome = kind.outcome(case, (logits for _, logits in group))
                except Exception as error:
                    outcome = _failure(case.image, error)
                strange = describe_strangeness(look_of(case.scan), kind.training_images, kind.data)
                note(case.number, replace(outcome, notes=case.scan.geometry.notes + strange))
    finally:  # also when it was interrupted, which may be after hours
        kind.finish([outcomes[number] for number in sorted(outcomes)])
    return [outcomes[number] for number in range(len(inputs))]


def _failure(image: Input, error: Exception) -> Outcome:
    logger.debug("%s failed", image.name, exc_info=error)
    return Outcome(image.name, error=_describe_error(error))


def read_input(image: Input) -> Scan:
    """Read the pixels of a picture, volume or series."""
    if image.error:
        raise UnreadableError(image.error)
    first = read_series(image.files) if image.files else read_scan(image.path)
    return join_channels([first, *(read_scan(path) for path in image.more)])


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return what_failed(error)
    if isinstance(error, MemoryError):
        return "too large for the memory of this computer"
    return str(error) if isinstance(error, UnreadableError) else f"{type(error).__name__}: {error}"
