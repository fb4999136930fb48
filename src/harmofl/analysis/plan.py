"""A plan of training made from surveys alone: size, spacing, patch, batch and network for all hospitals' images.

The rules are in the spirit of nnU-Net's (Isensee et al., Nature Methods 2021): spacing and size follow the median of
the data, the patch is as large as the budget allows, the network halves an axis while there is room. The budget is the
preset's own: as many pixels or voxels in a step as it has without a plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harmofl.analysis.comparison import Comparison, options_of
from harmofl.analysis.patches import coarsen, resampled, weighted_quantile
from harmofl.analysis.survey import Survey
from harmofl.errors import UsageError
from harmofl.models.volumes import plan_strides
from harmofl.settings import Settings

ANISOTROPIC = 3.0
"""Times as far as rows and columns: slices that lie so far apart are resampled finer, to their 10th percentile."""
SMALLEST_BATCH, LARGEST_BATCH = 2, 64
FEWEST_STEPS = 4
"""Steps in an epoch of the smallest hospital."""
SMALLEST_OBJECT = 24
"""Pixels that the short side of what is to be found should have."""
LARGEST_GROWTH = 2.0
"""Times as many pixels in a row as the preset has, at most, for the sake of small objects."""
RARE = 0.01
"""Share of foreground below which patches are drawn around it more often."""
FEW, MANY = 20, 200
"""Patients of a usual hospital: with fewer, images are augmented strongly; with more, by flips alone."""
METHOD = "method.name"
USUAL_METHOD = "fedavg"
NO_REASON = "Nothing that the hospitals told asks for another method."
NO_STATISTICS = "Hospitals look different, but these norm layers keep no statistics that would have to fit them."
CHOSEN = "Your choice."
HOUNSFIELD = -500.0
"""Lowest value of an image below which it is taken for CT."""


@dataclass(frozen=True)
class Step:
    """A number of the plan and where it comes from."""

    name: str
    """Of the setting."""
    value: Any
    reason: str


@dataclass(frozen=True)
class Plan:
    """Settings for a training, with reasons; the user may change every one."""

    settings: Settings
    """What it started from: task, preset and images."""
    comparison: Comparison
    steps: Sequence[Step]
    notes: Sequence[str] = field(default=())

    @property
    def values(self) -> dict[str, Any]:
        """The settings by name."""
        return {step.name: step.value for step in self.steps}

    def with_choices(self, choices: Mapping[str, Any]) -> Plan:
        """The same plan where the user has chosen some settings; the network then follows their patch and spacing."""
        moved = {"data.patch", "data.spacing"} & choices.keys()
        own = [step for step in self.steps if not (moved and step.name == "model.strides") or step.name in choices]
        steps = [
            replace(step, value=choices[step.name], reason=CHOSEN) if step.name in choices else step for step in own
        ]
        others = [Step(name, value, CHOSEN) for name, value in choices.items() if name not in self.values]
        return replace(self, steps=[*steps, *others])


def make_plan(settings: Settings, comparison: Comparison) -> Plan:
    """Plan a training on images of which only surveys are known.

    Args:
        settings: The task and the preset, whose budget the plan keeps.
        comparison: What the hospitals told; of volumes, as they were scanned.
    """
    told = {site: survey for site, survey in comparison.surveys.items() if survey.size}
    if not told:
        hidden = "; ".join(f"{site}: {survey.hidden}" for site, survey in comparison.surveys.items())
        raise UsageError(f"a plan needs one hospital at least that tells the size of its images ({hidden})")
    surveys = list(told.values())
    of_images = _plan_volumes if settings.data.dimensions == 3 else _plan_pictures
    steps = [*of_images(settings, surveys), _plan_augmentation(surveys), *_plan_method(settings, comparison)]
    return Plan(settings, comparison, steps, _notes(settings, comparison))


# --- volumes -------------------------------------------------------------------------------------------------------


def _plan_volumes(settings: Settings, surveys: Sequence[Survey]) -> list[Step]:
    data = settings.data
    wanted, why = plan_spacing(surveys)
    shape = median_shape(surveys, wanted)
    found = object_extent(surveys)
    budget = math.prod(data.input_size)
    spacing, patch = coarsen(wanted, shape, budget, found)
    times = spacing[1] / wanted[1]
    if times > 1:
        why += f" Made {times:.2g} times coarser, as a patch of {budget} voxels would show too little of a volume."
    shape = resampled(shape, wanted, spacing)
    share = math.prod(patch) / math.prod(shape)
    covers = "the whole of a median volume" if share >= 1 else f"{100 * share:.0f} % of a median volume"
    steps = [
        Step("data.dimensions", 3, "Volumes stay whole."),
        Step("data.spacing", [round(step, 3) for step in spacing], why),
        Step(
            "data.patch",
            list(patch),
            f"The median volume has {_times(shape)} voxels at that spacing. Of the preset's {budget} voxels a patch "
            f"takes {math.prod(patch)}, as equally long along all axes as volumes allow: {covers}.",
        ),
        _plan_batch(settings, surveys, budget / math.prod(patch), per_image=data.patches),
    ]
    return [*steps, *_plan_network(settings, patch, spacing), *_plan_foreground(surveys)]


def plan_spacing(surveys: Sequence[Survey]) -> tuple[list[float], str]:
    """The common spacing, and why."""
    told = [survey for survey in surveys if survey.spacing and len(survey.spacing) == 3]
    if not told:
        return [1.0, 1.0, 1.0], "No file says how far apart its voxels lie: 1 mm is assumed."
    weights = [survey.images for survey in told]
    medians = [weighted_quantile([_axis(s.spacing, axis) for s in told], weights, 0.5) for axis in range(3)]
    reason = "The median over hospitals, each counted by its volumes."
    coarsest = max(range(3), key=medians.__getitem__)
    others = max(medians[axis] for axis in range(3) if axis != coarsest)
    if medians[coarsest] > ANISOTROPIC * others:
        fine = weighted_quantile([_axis(s.finest or s.spacing, coarsest) for s in told], weights, 0.1)
        medians[coarsest] = max(fine, others)
        reason += (
            f" Voxels are more than {ANISOTROPIC:g} times as long along one axis: there the 10th percentile counts, so "
            "that hospitals with thinner slices keep what they show."
        )
    return medians, reason


def _axis(lengths: Sequence[float] | None, axis: int) -> float:
    assert lengths is not None
    return lengths[axis]


def median_shape(surveys: Sequence[Survey], spacing: Sequence[float]) -> list[float]:
    """Voxels of a median volume at a spacing."""
    weights = [survey.images for survey in surveys]
    shapes = [resampled(survey.size or [], survey.spacing or spacing, spacing) for survey in surveys]
    return [weighted_quantile([shape[axis] for shape in shapes], weights, 0.5) for axis in range(3)]


def object_extent(surveys: Sequence[Survey]) -> list[float] | None:
    """Millimetres of a box around all that is to be found in a volume, the median over hospitals."""
    told = [survey for survey in surveys if survey.object_size and survey.spacing]
    if not told:
        return None
    boxes = [[n * step for n, step in zip(s.object_size or [], s.spacing or [], strict=True)] for s in told]
    return [weighted_quantile([box[axis] for box in boxes], [s.images for s in told], 0.5) for axis in range(3)]


def _plan_network(settings: Settings, patch: Sequence[int], spacing: Sequence[float]) -> list[Step]:
    if settings.model.network != "dynunet":
        return []
    strides = [list(level) for level in plan_strides(patch, spacing)]
    reason = (
        f"{len(strides)} levels: at each, the axes with the finest voxels are halved, while 4 voxels or more remain; "
        "so features grow as isotropic as they can."
    )
    return [Step("model.strides", strides, reason)]


def _plan_foreground(surveys: Sequence[Survey]) -> list[Step]:
    shares = [sum(survey.balance.values()) for survey in surveys if survey.balance]
    if not shares or min(shares) >= RARE:
        return []
    reason = (
        f"At one hospital only {100 * min(shares):.2f} % of voxels are foreground: more patches are drawn around it."
    )
    return [Step("data.foreground", 0.67, reason)]


# --- images --------------------------------------------------------------------------------------------------------


def _plan_pictures(settings: Settings, surveys: Sequence[Survey]) -> list[Step]:
    preset = settings.data.size
    weights = [survey.images for survey in surveys]
    short = weighted_quantile([min((survey.size or [])[-2:]) for survey in surveys], weights, 0.5)
    size, reason = preset, f"The preset's: the median image is {short:.0f} pixels wide or high, or more."
    objects = [min(survey.object_size[-2:]) for survey in surveys if survey.object_size]
    if short < preset:
        size = max(16, _multiple(short, 16))
        reason = f"The median image is {short:.0f} pixels wide or high: more would show nothing new."
    elif settings.data.resize and objects and min(objects) < SMALLEST_OBJECT and short > preset:
        grown = min(preset * SMALLEST_OBJECT / min(objects), LARGEST_GROWTH * preset, short)
        size = max(preset, _multiple(grown, 16))
        reason = (
            f"At the preset's {preset} pixels, what is to be found is {min(objects):.0f} pixels across at one "
            f"hospital. {SMALLEST_OBJECT} would be better, and the images have them."
        )
    return [Step("data.size", size, reason), _plan_batch(settings, surveys, (preset / size) ** 2)]


def _multiple(length: float, of: int) -> int:
    return of * math.ceil(length / of - 1e-9)


# --- both ----------------------------------------------------------------------------------------------------------


def _plan_batch(settings: Settings, surveys: Sequence[Survey], room: float, per_image: int = 1) -> Step:
    """As many as the preset's budget holds, but some steps for the smallest hospital."""
    fewest = min(survey.images for survey in surveys) * per_image
    most = max(SMALLEST_BATCH, min(LARGEST_BATCH, fewest // FEWEST_STEPS))
    wanted = max(SMALLEST_BATCH, round(settings.training.batch_size * room))
    size = min(wanted, most)
    reason = "As many as make a step as large as the preset's."
    if size < wanted:
        reason = (
            f"The smallest hospital trains on {fewest}: with more than {size} in a step it would make too few steps."
        )
    return Step("training.batch_size", size, reason)


def _plan_augmentation(surveys: Sequence[Survey]) -> Step:
    patients = weighted_quantile([float(survey.patients) for survey in surveys], [1] * len(surveys), 0.5)
    name = "strong" if patients < FEW else "standard" if patients < MANY else "flips"
    plural = "" if patients == 1 else "s"
    return Step("training.augmentation", name, f"A usual hospital has {patients:.0f} patient{plural} to train on.")


def _plan_method(settings: Settings, comparison: Comparison) -> list[Step]:
    """The advice of the comparison, as far as the network's norm layers can follow it."""
    advice = comparison.advice_for(settings.model.norm)
    reasons = {name: each.reason for each in reversed(advice) for name in each.options}
    options = options_of(advice)
    steps = [Step(METHOD if name == "method" else name, value, reasons[name]) for name, value in options.items()]
    reason = NO_REASON if advice == comparison.advice else NO_STATISTICS
    return steps if "method" in options else [Step(METHOD, USUAL_METHOD, reason), *steps]


def _notes(settings: Settings, comparison: Comparison) -> list[str]:
    """What the plan does not decide."""
    surveys = comparison.surveys
    notes = [
        f"{site}: {survey.hidden}; {'how its images look' if survey.size else 'it'} did not count."
        for site, survey in surveys.items()
        if survey.hidden
    ]
    notes += [each.reason for each in comparison.advice_for(settings.model.norm) if not each.options]
    if any(survey.original and survey.original[0] < HOUNSFIELD for survey in surveys.values()):
        notes.append(
            "Some values lie below -500, as in CT: if these are Hounsfield units, choose a window for all hospitals, "
            "such as data.intensity = [-160, 240]."
        )
    return notes


def _times(lengths: Sequence[float]) -> str:
    return " × ".join(f"{length:.0f}" for length in lengths)
