import json
import math

import pytest

from harmofl import registry
from harmofl.errors import UsageError
from harmofl.settings import resolve
from harmofl.tasks.scores import Score, accuracy, dice, hd95, score_in
from harmofl.tasks.scoring import collect


class Fixed:
    """Gives these scores, whatever it is shown."""

    def __init__(self, **scores: float) -> None:
        self._scores = scores

    def add(self, logits: object, batch: object) -> None:
        """Ignore it."""

    def scores(self) -> dict[str, float]:
        return self._scores


def test_a_share_is_printed_in_percent_and_a_distance_in_pixels() -> None:
    assert dice.format(0.87654) == "87.65 %"
    assert hd95.format(3.14159) == "3.14 pixels"
    assert (dice.words_with_unit, hd95.words_with_unit) == ("Dice score in percent", "HD95 in pixels")
    plain = Score("error", unit="")
    assert (plain.format(2.5), plain.words_with_unit) == ("2.50", "error")


def test_a_missing_value_has_no_score() -> None:
    assert math.isnan(dice.in_unit(None))
    assert dice.text(math.nan) == "no score"


@pytest.mark.parametrize(("gap", "text"), [(1.04, "1.0 point"), (1.26, "1.3 points"), (-0.5, "−0.5 points")])
def test_a_gap_of_percentages_is_in_points(gap: float, text: str) -> None:
    assert dice.gap_text(gap) == text
    assert hd95.gap_text(2.0, signed=True) == "+2.0 pixels"


def test_the_lower_distance_leads() -> None:
    assert dice.lead(0.8, over=0.5) == pytest.approx(0.3)
    assert hd95.lead(2.0, over=5.0) == 3.0
    assert max([5.0, 2.0], key=hd95.rank) == 2.0
    assert (dice.better_direction, hd95.better_direction) == ("right", "left")


@pytest.mark.parametrize(("score", "dimensions"), [("hd95", 3), ("hd95_mm", 2), ("surface_dice", 2)])
def test_a_score_of_images_does_not_select_models_for_volumes_nor_the_other_way(score: str, dimensions: int) -> None:
    message = rf"training\.score = '{score}': it is for data\.dimensions = {5 - dimensions} only"
    with pytest.raises(UsageError, match=message):
        resolve("prostate", "fedavg", "smoke", overrides={"training.score": score, "data.dimensions": dimensions})
    resolve("prostate", "fedavg", "smoke", overrides={"training.score": score, "data.dimensions": 5 - dimensions})


@pytest.mark.parametrize("score", [dice, hd95])
def test_a_summary_tells_all_that_a_report_asks_of_a_score(score: Score) -> None:
    read = score_in(json.loads(json.dumps({"metric_name": "unknown here", "score": score.to_json()})))
    assert read.to_json() == score.to_json()
    assert (read.range, read.format(0.5)) == (score.range, score.format(0.5))
    assert score_in({"metric_name": "accuracy"}) is accuracy


def test_the_chosen_score_comes_first_under_the_name_metric() -> None:
    scores = collect([Fixed(hd95=4.0), Fixed(dice=0.5)], hd95)
    assert list(scores.items()) == [("metric", 4.0), ("dice", 0.5)]
    with pytest.raises(UsageError, match=r"training\.score = 'hd95': it is not defined"):
        collect([Fixed(dice=0.5)], hd95)


def test_every_score_is_within_its_range() -> None:
    assert all(score.range[0] < score.range[1] for score in registry.scores)
