from typing import Any

import pytest
import torch

from harmofl.analysis.comparison import Comparison
from harmofl.analysis.plan import Plan, make_plan
from harmofl.analysis.survey import Moments, Survey
from harmofl.errors import UsageError
from harmofl.settings import resolve


def survey(**values: Any) -> Survey:
    usual = {"images": 30, "patients": 30, "size": [24.0, 320.0, 320.0], "spacing": [3.0, 0.6, 0.6]}
    told = usual | {"finest": [2.5, 0.5, 0.5], "object_size": [14.0, 80.0, 70.0], "balance": {"prostate": 0.02}}
    return Survey(**told | values)


def planned(surveys: dict[str, Survey], task: str = "prostate", preset: str = "paper", **given: Any) -> Plan:
    overrides = {f"data.{name}": value for name, value in given.items()}
    settings, _ = resolve(task, "fedavg", preset, overrides=overrides)
    return make_plan(settings, Comparison(task, "segmentation", "images", surveys))


def test_spacing_is_the_median_over_hospitals_counted_by_their_volumes() -> None:
    thin = survey(spacing=[1.5, 0.8, 0.8], images=20)
    plan = planned({"A": survey(), "B": survey(), "C": thin}, dimensions=3)
    # The median is 3 mm, five times the pixels: so the 10th percentile, 2.5 mm at A and B, counts.
    assert plan.values["data.spacing"] == [2.5, 0.6, 0.6]
    isotropic = {"A": survey(spacing=[1.0, 0.9, 0.9]), "B": survey(spacing=[2.0, 0.7, 0.7], images=90)}
    assert planned(isotropic, dimensions=3).values["data.spacing"][0] == 2.0


def test_patch_batch_and_network_follow_from_it() -> None:
    values = planned({"A": survey(), "B": survey()}, dimensions=3).values
    assert values["data.dimensions"] == 3
    depth, height, width = values["data.patch"]
    assert height == width
    assert 0.6 * 16 * 192 * 192 <= depth * height * width <= 1.1 * 16 * 192 * 192
    assert depth * 2.5 >= 60  # of 72 mm
    assert values["training.batch_size"] == round(2 * 16 * 192 * 192 / (depth * height * width))
    assert all(set(level) <= {1, 2} for level in values["model.strides"])
    assert values["model.strides"][0] == [1, 2, 2]  # slices are far apart: rows and columns are halved first


def test_a_small_budget_makes_voxels_coarser_and_says_so() -> None:
    plan = planned({"A": survey(), "B": survey()}, preset="small", dimensions=3)
    step = next(step for step in plan.steps if step.name == "data.spacing")
    assert step.value[1] > 0.6
    assert "coarser" in step.reason


def test_every_plan_names_a_method_so_that_it_can_be_trained() -> None:
    plan = planned({"A": survey()}, dimensions=3)  # one hospital: there is nothing to compare
    assert plan.values["method.name"] == "fedavg"


def test_rare_foreground_is_drawn_more_often() -> None:
    rare = planned({"A": survey(), "B": survey(balance={"prostate": 0.004})}, dimensions=3).values
    assert rare["data.foreground"] == 0.67
    assert "data.foreground" not in planned({"A": survey(), "B": survey()}, dimensions=3).values


@pytest.mark.parametrize(
    ("side", "found", "size"),
    [
        (400.0, 60.0, 384),  # the preset's: images have as many, and what is to be found is large
        (100.0, 60.0, 112),  # no more than the images have, rounded up to a multiple of 16
        (900.0, 20.0, 464),  # 384 · 24 / 20 = 460.8
        (400.0, 6.0, 400),  # but never more than the images have
    ],
)
def test_the_size_of_images_follows_the_files_and_what_is_to_be_found(side: float, found: float, size: int) -> None:
    told = survey(size=[side, side], object_size=[found, 2 * found], spacing=None, finest=None)
    assert planned({"A": told, "B": told}).values["data.size"] == size


def test_a_step_is_as_large_as_the_presets_but_the_smallest_hospital_makes_four() -> None:
    small = survey(size=[96.0, 96.0], object_size=[40.0, 40.0], spacing=None, finest=None, images=4000)
    assert planned({"A": small, "B": small}).values["training.batch_size"] == 64  # 16 · (384 / 96)², at most 64
    few = small.model_copy(update={"images": 40})
    assert planned({"A": small, "B": few}).values["training.batch_size"] == 10


@pytest.mark.parametrize(("patients", "name"), [(8, "strong"), (50, "standard"), (500, "flips")])
def test_few_patients_are_augmented_strongly(patients: int, name: str) -> None:
    plan = planned({"A": survey(patients=patients), "B": survey(patients=patients)})
    assert plan.values["training.augmentation"] == name


def test_hospitals_that_hide_their_sizes_do_not_count_but_one_is_needed() -> None:
    quiet = Survey(images=3, patients=2, hidden="fewer than 8 training images")
    plan = planned({"A": survey(), "Q": quiet}, dimensions=3)
    assert plan.notes[0] == "Q: fewer than 8 training images; it did not count."
    uneven = survey(hidden="half of its patients have fewer than 4 images")
    assert planned({"U": uneven}, dimensions=3).notes[0].endswith("; how its images look did not count.")
    with pytest.raises(UsageError, match="a plan needs one hospital at least that tells the size of its images"):
        planned({"Q": quiet}, dimensions=3)


def test_hounsfield_units_are_mentioned() -> None:
    plan = planned({"A": survey(original=[-1024.0, -300.0, 2000.0])}, dimensions=3)
    assert any("data.intensity = [-160, 240]" in note for note in plan.notes)


def test_the_users_own_choices_stand_and_the_network_follows_them() -> None:
    plan = planned({"A": survey(), "B": survey()}, dimensions=3)
    changed = plan.with_choices({"data.patch": [16, 64, 64], "data.sites": ["A"], "training.batch_size": 3})
    assert changed.values["data.patch"] == [16, 64, 64]
    assert changed.values["training.batch_size"] == 3
    assert changed.values["data.sites"] == ["A"]
    assert "model.strides" not in changed.values
    assert plan.with_choices({"training.batch_size": 3}).values["model.strides"] == plan.values["model.strides"]


def test_no_statistics_are_planned_for_norm_layers_that_keep_none() -> None:
    halves = [
        Moments(images=10, mean=[float(site)] * 16, covariance=(0.01 * torch.eye(16)).tolist()) for site in (0, 1)
    ]
    surveys = {
        name: survey(size=[40.0, 40.0], spacing=None, finest=None, object_size=None, halves=[half, half])
        for name, half in zip("AB", halves, strict=True)
    }
    comparison = Comparison("prostate", "segmentation", "images", surveys)
    for norm, expected in (("batch", "freshbn"), ("instance", "fedavg")):
        settings, _ = resolve("prostate", "fedavg", "smoke", overrides={"model.norm": norm})
        plan = make_plan(settings, comparison)
        assert plan.values["method.name"] == expected
        assert any("--method harmofl" in note for note in plan.notes) == (norm == "batch")
        (reason,) = (step.reason for step in plan.steps if step.name == "method.name")
        assert ("keep no statistics" in reason) == (norm == "instance")
