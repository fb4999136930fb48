from typing import Any

import pytest
import torch
from torch import Tensor

from harmofl.analysis.appearance import RINGS, statistics
from harmofl.analysis.survey import BINS, Originals, Surveyed, middle, read_survey, survey_site
from harmofl.data.images import LabelledImages


def surveyed(images: Tensor, targets: Tensor, groups: Tensor | None = None, **more: Any) -> Surveyed:
    of = LabelledImages(images, targets, torch.arange(len(images)) if groups is None else groups)
    values: dict[str, Any] = {"others": 3, "patients": len(of.groups.unique()), "classes": ("no", "yes"), "fewest": 1}
    return Surveyed(train=of, colours=False, **values | more)


def labels(*counts: int) -> Tensor:
    return torch.tensor([number for number, count in enumerate(counts) for _ in range(count)])


def test_intensities_and_balance_are_those_of_the_images() -> None:
    images = torch.cat([torch.full((6, 1, 8, 8), 0.26), torch.full((2, 1, 8, 8), 0.76)])
    survey = survey_site("A", surveyed(images, labels(6, 2)))
    assert (survey.images, survey.patients, survey.others) == (8, 8, 3)
    assert survey.balance == {"no": 0.75, "yes": 0.25}
    expected = [0.0] * BINS
    expected[int(0.26 * BINS)], expected[int(0.76 * BINS)] = 0.75, 0.25
    assert survey.histogram == expected
    assert survey.percentiles[2] == (8 + 0.5) / BINS
    assert survey.size == [8, 8]
    assert survey.empty is None


def test_masks_tell_how_much_there_is_to_find_and_how_large_it_is() -> None:
    masks = torch.zeros(4, 10, 10, dtype=torch.int64)
    masks[:3, 2:5, 1:7] = 1  # 3 × 6 of 100 pixels, in three of four images
    survey = survey_site("A", surveyed(torch.rand(4, 3, 10, 10), masks))
    assert survey.balance == {"yes": pytest.approx(0.75 * 0.18)}
    assert survey.empty == 0.25
    assert survey.object_size == [3, 6]


def test_no_patient_is_in_both_halves() -> None:
    brightness = torch.tensor([0.1, 0.2, 0.4, 0.8]).repeat_interleave(2)
    images = brightness.view(8, 1, 1, 1).expand(8, 1, 8, 8)
    groups = torch.arange(4).repeat_interleave(2)
    halves = survey_site("A", surveyed(images, labels(4, 4), groups)).halves
    assert [half.images for half in halves] == [4, 4]
    # The mean stands first; of two patients each, whole: sums of two of the four values, never of a torn one.
    first, second = (2 * half.mean[0] for half in halves)
    assert first + second == pytest.approx(1.5)
    assert any(first == pytest.approx(a + b) for a in (0.1, 0.2, 0.4, 0.8) for b in (0.1, 0.2, 0.4, 0.8) if a != b)


def test_moments_are_those_of_the_descriptions() -> None:
    images = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    halves = survey_site("A", surveyed(images, labels(5, 5))).halves
    rows = statistics(images)
    total = sum(half.images * torch.tensor(half.mean, dtype=torch.float64) for half in halves)
    assert torch.allclose(torch.as_tensor(total) / 10, rows.mean(0), atol=1e-5)
    second = sum(
        half.images
        * (
            torch.tensor(half.covariance, dtype=torch.float64)
            + torch.outer(*[torch.tensor(half.mean, dtype=torch.float64)] * 2)
        )
        for half in halves
    )
    assert torch.allclose(torch.as_tensor(second) / 10, rows.T @ rows / 10, atol=1e-4)


def test_of_volumes_slices_are_described_and_sizes_and_spacings_told() -> None:
    volumes = torch.rand(4, 1, 5, 12, 10)
    masks = torch.zeros(4, 5, 12, 10, dtype=torch.int64)
    masks[:, 1:4, 2:8, 3:5] = 1
    spacings = torch.tensor([[3.0, 0.5, 0.5]] * 3 + [[4.0, 0.6, 0.6]])
    survey = survey_site("A", surveyed(volumes, masks, originals=Originals(spacings=spacings)))
    assert survey.size == [5, 12, 10]
    assert survey.object_size == [3, 6, 2]
    assert survey.spacing == [3.0, 0.5, 0.5]
    assert len(survey.spectrum) == RINGS
    assert survey.halves[0].mean[0] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("count", [5, 7])
def test_a_hospital_with_few_images_tells_their_number_alone(count: int) -> None:
    survey = survey_site("A", surveyed(torch.rand(count, 1, 8, 8), labels(count), fewest=8))
    assert survey.hidden == "fewer than 8 training images"
    assert set(survey.to_json()) - {"hidden"} == {"images", "patients", "others"} | {
        "balance", "original", "percentiles", "histogram", "spectrum", "halves",
    }  # fmt: skip
    assert not any(survey.to_json()[name] for name in ("balance", "percentiles", "histogram", "spectrum", "halves"))


def test_a_class_of_few_images_hides_the_balance() -> None:
    told, hidden = (
        survey_site("A", surveyed(torch.rand(20, 1, 8, 8), labels(*c), fewest=8)) for c in ((10, 10), (15, 5))
    )
    assert told.balance == {"no": 0.5, "yes": 0.5}
    assert hidden.balance == {}
    assert hidden.histogram


def test_a_class_in_few_masks_hides_how_much_of_it_there_is() -> None:
    masks = torch.zeros(20, 8, 8, dtype=torch.int64)
    masks[:12, :2], masks[:3, 4:6] = 1, 2
    three = {"classes": ("background", "organ", "tumour"), "fewest": 8}
    hidden = survey_site("A", surveyed(torch.rand(20, 1, 8, 8), masks, **three))
    assert (hidden.balance, hidden.empty, hidden.object_size) == ({}, None, None)
    masks[:9, 4:6] = 2
    told = survey_site("A", surveyed(torch.rand(20, 1, 8, 8), masks, **three))
    assert told.balance == {"organ": 12 * 16 / 1280, "tumour": pytest.approx(9 * 16 / 1280)}


def test_many_images_are_drawn_and_a_survey_is_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmofl.analysis.survey.MOST_IMAGES", 6)
    of = surveyed(torch.rand(20, 1, 8, 8), labels(10, 10))
    first, again = survey_site("A", of), survey_site("A", of)
    assert first == again
    assert sum(half.images for half in first.halves) == 6
    assert first.images == 20


def test_what_travels_is_read_back_and_nothing_else_is_taken_for_it() -> None:
    told = survey_site("A", surveyed(torch.rand(8, 1, 8, 8), labels(4, 4))).to_json()
    assert read_survey(told) is not None
    for change in (
        {"images": -1},
        {"images": "many"},
        {"extra": 1},
        {"histogram": [float("nan")]},
        {"balance": {"no": 2.0}},
        {"size": [0, 4]},
        {"halves": [{"images": 3, "mean": [1.0], "covariance": [[1.0, 2.0]]}]},
        {"halves": [{"images": 3, "mean": [float("inf")], "covariance": [[1.0]]}]},
        {"hidden": "x" * 1000},
        {"hidden": "\x1b[2J"},
        {"balance": {"\x1b[2J": 0.5}},
        {"balance": {"x" * 1000: 0.5}},
    ):
        assert read_survey(told | change) is None, change
    assert read_survey([]) is None


@pytest.mark.parametrize(
    ("values", "level", "told"),
    [
        ([1.0, 2.0, 4.0, 8.0, 16.0], 0.5, (2 + 4 + 8) / 3),  # no image shares the median
        ([1.0, 2.0, 4.0, 8.0, 16.0], 0.9, (4 + 8 + 16) / 3),  # nor the largest
        ([1.0, 3.0, 3.0, 3.0, 16.0], 0.5, 3.0),  # three do: it is nobody's own
        ([1.0, 1.0, 3.0, 3.0, 16.0], 0.5, (1 + 3 + 3) / 3),  # two are too few
    ],
)
def test_no_image_tells_its_own_size_or_spacing(values: list[float], level: float, told: float) -> None:
    assert middle(torch.tensor(values)[:, None], level) == [pytest.approx(told, rel=1e-5)]


def test_spacings_of_few_scans_are_not_told() -> None:
    volumes, masks = torch.rand(4, 1, 5, 12, 10), torch.ones(4, 5, 12, 10, dtype=torch.int64)
    few = Originals(spacings=torch.tensor([[3.0, 0.5, 0.5]] * 3))
    assert survey_site("A", surveyed(volumes, masks, fewest=4, originals=few)).spacing is None
