import json

import pytest
import torch

from harmofl.analysis.comparison import Comparison, options_of
from harmofl.analysis.hospital_surveys import surveys_of
from harmofl.analysis.hospitals import Hospitals, embedding, harmonization, looks_at
from harmofl.analysis.survey import Survey, Surveyed, survey_site
from harmofl.data.images import LabelledImages
from harmofl.settings import Settings, resolve


def settings_of(task: str, shift: float, **more: object) -> Settings:
    return resolve(
        task, "fedavg", "smoke", overrides={"data.shift": shift, **{f"data.{k}": v for k, v in more.items()}}
    )[0]


def compared(task: str, shift: float, **more: object) -> Comparison:
    return Comparison(task, "segmentation", "synthetic hospitals", surveys_of(settings_of(task, shift, **more)))


def kinds(comparison: Comparison) -> list[str]:
    return [each.kind for each in comparison.advice]


@pytest.mark.parametrize(
    ("shift", "expected"), [(0.0, ["nothing"]), (0.3, ["statistics", "harmonize"]), (1.0, ["statistics", "harmonize"])]
)
def test_the_right_advice_for_synthetic_hospitals_that_differ_more_and_more(shift: float, expected: list[str]) -> None:
    comparison = compared("prostate", shift, images=24, sites=["BIDMC", "HK", "I2CVB", "ISBI_1.5"])
    assert kinds(comparison) == expected
    assert all(each.reason for each in comparison.advice)
    assert json.loads(json.dumps(comparison.to_json()))["probe"]["as they are"]["chance"] == 0.25


def test_moments_tell_hospitals_apart_as_well_as_a_probe_that_sees_every_image() -> None:
    settings = settings_of("prostate", 1.0, sites=["BIDMC", "HK", "UCL"])
    comparison = Comparison("prostate", "segmentation", "", surveys_of(settings))
    hospitals = Hospitals(settings)
    exact = embedding(looks_at(hospitals, harmonization(hospitals, ["dc"]).layers)).probes
    for own, probe in ((comparison.before, exact["before"]), (comparison.after, exact["dc"])):
        assert own is not None
        assert own.accuracy == pytest.approx(probe.accuracy, abs=0.15)


def survey(offset: float, contrast: float, counts: tuple[int, int] = (20, 20), seed: int = 0) -> Survey:
    """Of smooth noise, with so much added, and that contrast."""
    count = sum(counts)
    images = torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(seed))
    images = 0.3 + offset + contrast * 0.3 * (images - images.mean(dim=(-2, -1), keepdim=True))
    labels = torch.tensor([0] * counts[0] + [1] * counts[1])
    of = LabelledImages(images, labels, torch.arange(count))
    classes = ("healthy", "ill")
    return survey_site("A", Surveyed(of, others=0, patients=count, classes=classes, colours=False, fewest=8))


def test_hospitals_that_differ_in_brightness_alone_keep_their_statistics_and_may_be_harmonized() -> None:
    surveys = {"A": survey(0.0, 1.0), "B": survey(0.2, 1.0, seed=1), "C": survey(0.4, 1.0, seed=2)}
    comparison = Comparison("classification", "classification", "", surveys)
    assert kinds(comparison) == ["statistics", "harmonize"]
    assert options_of(comparison.advice) == {"method": "freshbn"}
    assert comparison.advice_for("instance") == []
    assert comparison.before is not None
    assert comparison.before.accuracy == 1.0
    assert "C has more brightness" in comparison.advice[0].reason


def test_hospitals_that_differ_in_contrast_alone_are_not_harmonized() -> None:
    both = {"A": survey(0.0, 1.0), "B": survey(0.2, 0.3, seed=1)}
    assert kinds(Comparison("classification", "classification", "", both)) == ["statistics", "harmonize"]
    faint = {"A": survey(0.0, 1.0), "B": survey(0.0003, 0.3, seed=1)}
    reason = Comparison("classification", "classification", "", faint).advice[0].reason
    assert "B has less contrast" in reason
    assert "Brightness differs, too: " in reason
    contrast = Comparison("classification", "classification", "", {"A": survey(0, 1.0), "B": survey(0, 0.3, seed=1)})
    assert kinds(contrast) == ["statistics"]
    assert "B has less contrast" in contrast.advice[0].reason


def test_other_classes_ask_for_a_last_layer_of_its_own() -> None:
    surveys = {"A": survey(0.0, 1.0, (30, 10)), "B": survey(0.0, 1.0, (10, 30), seed=1)}
    comparison = Comparison("classification", "classification", "", surveys)
    assert kinds(comparison) == ["nothing", "personalize"]
    assert "A has 75 % healthy, 25 % ill; B has 25 % healthy, 75 % ill" in comparison.advice[1].reason


def test_few_patients_uneven_numbers_and_amounts_are_named() -> None:
    plain = survey(0.0, 1.0)
    amounts = [plain.model_copy(update={"balance": {"gland": share}}) for share in (0.02, 0.08)]
    surveys = {"A": amounts[0].model_copy(update={"images": 400}), "B": amounts[1].model_copy(update={"patients": 3})}
    found = {each.kind: each.reason for each in Comparison("x", "segmentation", "", surveys).advice}
    assert "B has 8.0 % foreground, A 2.0 %" in found["personalize"]
    assert found["patients"].startswith("B: fewer than 5 patients")
    assert "A has 400 training images, B 40" in found["numbers"]


def test_hospitals_that_tell_too_little_are_left_out_and_one_alone_is_not_compared() -> None:
    quiet = Survey(images=4, patients=2, hidden="fewer than 8 training images")
    surveys = {"A": survey(0.0, 1.0), "B": survey(0.3, 1.0, seed=1), "C": quiet}
    comparison = Comparison("classification", "classification", "", surveys)
    assert list(comparison.compared) == ["A", "B"]
    alone = Comparison("classification", "classification", "", {"A": surveys["A"], "C": quiet})
    assert kinds(alone)[0] == "unknown"
    assert alone.to_json()["probe"] == {}
