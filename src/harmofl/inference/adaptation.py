"""A model for a hospital that took no part, from its unlabelled images.

The harmonizer measures them, if it holds something of each site's own; batch norm statistics are estimated on them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harmofl.data.layouts.manifest import NAME as MANIFEST
from harmofl.data.layouts.tree import printable
from harmofl.devices import check_device, choose_device, threads, to_device
from harmofl.errors import UsageError
from harmofl.events import StepDone, Watch, ignore
from harmofl.files import write_whole
from harmofl.inference.inputs import Input, find_inputs, sites_in
from harmofl.inference.prediction import read_input
from harmofl.inference.volume_windows import open_windows
from harmofl.methods.adaptations import pool_statistics
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.methods.sharing import running_statistics
from harmofl.runs.model_folder import TrainedModel, has_one_model, open_model, read_description, write_weights
from harmofl.runs.site_models import mean_model, shared_entries
from harmofl.states import State, snapshot

logger = logging.getLogger(__name__)

FEWEST_IMAGES = 8
"""Statistics of fewer images say more about those patients than about the hospital."""


@dataclass(frozen=True)
class AdaptationSummary:
    """What became of a model: how many images it took, and how far its statistics moved."""

    images: int
    """Files or series that were read."""
    inputs: int
    """Slices or tiles of them that the network saw."""
    shift_of_means: float | None
    """Of the batch norm layer where it is most: median over channels of |new − old mean| in old standard deviations."""
    ratio_of_deviations: float | None
    """Of the layer where it is most: median over channels of the larger standard deviation divided by the smaller."""
    change_of_harmonizer: float | None
    """How far what the harmonizer holds of this hospital lies from what it held before, relative to that."""
    unreadable: Mapping[str, str]
    """From the images that could not be used to the reason."""


def adapt_model(
    folder: Path,
    data: Path,
    out: Path,
    *,
    site: str | None = None,
    fewest: int = FEWEST_IMAGES,
    device: str = "auto",
    method: Method | None = None,
    watch: Watch = ignore,
) -> AdaptationSummary:
    """Write a model whose batch norm and harmonizer statistics are a folder's; labels and masks are not read.

    `site`: whose model to start from; by default the model of all sites, or the mean of what each site keeps.
    """
    check_device(device)
    if (out / "model.json").exists():
        raise UsageError(f"{out} holds a model already: choose another --out")
    trained = _choose_model(folder, site, method)
    before, own = _statistics(trained.model), _own_buffers(trained.model)
    if not before and not own:
        norm = trained.settings.model.norm
        raise UsageError(f"{folder}: model.norm = {norm!r} keeps no statistics, so there is nothing to adapt")
    images = _find_images(data, out)
    _check_number(data, len(images), fewest, {})  # before they are read
    reading = _Reading(trained, images, watch)
    place = choose_device(device)
    with threads(trained.settings.federation.threads):
        trained.model.to(place)
        if own:
            trained.model.harmonizer.measure(to_device(batch, place) for batch in reading.batches())
        if before:
            pool_statistics(trained.model, (to_device(batch, place) for batch in reading.batches()))
    _check_number(data, reading.num_read, fewest, reading.unreadable)
    shift, ratio = measure_movement(before, _statistics(trained.model)) if before else (None, None)
    change = _relative_change(own, _own_buffers(trained.model)) if own else None
    summary = AdaptationSummary(reading.num_read, reading.num_inputs, shift, ratio, change, reading.unreadable)
    _write(out, trained.model, read_description(folder), summary)
    return summary


def _check_number(data: Path, count: int, fewest: int, unreadable: Mapping[str, str]) -> None:
    """Raise an error for too few images, with the first reasons why others do not count."""
    if count >= fewest:
        return
    reasons = "; ".join(f"{name}: {reason}" for name, reason in list(unreadable.items())[:3])
    images = "1 image" if count == 1 else f"{count} images"
    raise UsageError(
        f"{data}: {images} that can be read; statistics take at least {fewest} (--min-images)"
        + (f" ({reasons})" if reasons else "")
    )


def _choose_model(folder: Path, site: str | None, method: Method | None) -> TrainedModel:
    """The model to start from: of all sites, of one, or the mean of what each site keeps."""
    if site is not None or has_one_model(folder):
        return open_model(folder, site, method)
    each = [open_model(folder, name, method) for name in read_description(folder)["sites"]]
    shared = shared_entries(each[0].method, each[0].model)
    if not shared:
        raise UsageError(f"{folder}: each site trained alone, so there is no common model: choose one with --site")
    return each[0]._replace(model=mean_model([trained.model for trained in each], shared))


def _find_images(data: Path, out: Path) -> list[Input]:
    """The images of a folder: those its manifest names, or all that are found."""
    named = data / MANIFEST if (data / MANIFEST).is_file() else data
    if named.is_file() and named.suffix.lower() == ".csv" and len(sites := sites_in(named)) > 1:
        logger.warning(
            "%s names %d sites (%s): statistics of all their images together fit none of them. --data may be the "
            "folder of one hospital, or a table of its images alone",
            named,
            len(sites),
            ", ".join(map(printable, sites)),
        )
    return [each for each in find_inputs([named], out) if not each.left_out]


class _Reading:
    """Reads images one by one and gives the network's inputs in batches; what cannot be read is noted."""

    def __init__(self, trained: TrainedModel, inputs: list[Input], watch: Watch) -> None:
        self._trained = trained
        self._inputs = inputs
        self._watch = watch
        self.num_read = 0
        self.num_inputs = 0
        self.unreadable: dict[str, str] = {}

    def batches(self) -> Iterator[Tensor]:
        """Batches (N, C, H, W) in [0, 1], in the order of the files; each pass reads and counts anew."""
        self.num_read = self.num_inputs = 0
        self.unreadable.clear()
        windows = self._windows()
        while batch := list(islice(windows, max(2, self._trained.settings.training.batch_size))):
            self.num_inputs += len(batch)
            yield torch.stack(batch)

    def _windows(self) -> Iterator[Tensor]:
        task, data = self._trained.task, self._trained.settings.data
        resize = (data.resize and data.dimensions == 2) or task.kind == "classification"
        for number, image in enumerate(self._inputs):
            self._watch(StepDone(printable(image.name), number, len(self._inputs)))
            try:
                windows = open_windows(read_input(image), data, task.image_shape(data)[0], resize, overlap=0)
            except Exception as error:  # whatever is wrong with one image, the others count
                self.unreadable[image.name] = f"{error}"
                continue
            self.num_read += 1
            yield from windows


def _statistics(model: Model) -> State:
    """The running means and variances of all batch norm layers."""
    pairs = running_statistics(model.network)
    return {name: tensor.double() for name, tensor in snapshot(model.network, [*pairs, *pairs.values()]).items()}


def _own_buffers(model: Model) -> State:
    """What the harmonizer holds of its own site."""
    return {name: tensor.double() for name, tensor in snapshot(model.harmonizer, sorted(model.harmonizer.own)).items()}


def _relative_change(before: State, after: State) -> float:
    old, new = (torch.cat([tensor.flatten() for tensor in state.values()]) for state in (before, after))
    return float((new - old).norm() / old.norm().clamp_min(1e-12))


def measure_movement(before: State, after: State) -> tuple[float, float]:
    """How far means moved, in old deviations, and by what factor deviations changed, each where it is most.

    Of a layer the median over its channels counts. Layers see what those before them have normalized, so that most of
    them hardly move, whatever the images look like: often the first one tells.
    """
    shifts, ratios = [], []
    for variance in [name for name in before if name.endswith("running_var")]:
        mean = variance.removesuffix("running_var") + "running_mean"
        old, new = ((state[variance] + 1e-5).sqrt() for state in (before, after))
        shifts.append(float(((after[mean] - before[mean]).abs() / old).median()))
        ratios.append(float(torch.maximum(new / old, old / new).median()))
    return max(shifts), max(ratios)


def _write(out: Path, model: Model, description: Mapping[str, Any], summary: AdaptationSummary) -> None:
    adapted = {name: value for name, value in asdict(summary).items() if name != "unreadable"}
    checksum = write_weights(out, model)
    values = {**description, "adapted": adapted, "sha256": checksum}
    write_whole(out / "model.json", json.dumps(values, indent=2) + "\n")
