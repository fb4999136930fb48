"""A score that has no value, as the distance to what was not found, leaves no site out of a round."""

import json
from pathlib import Path

import pytest
from torch import Tensor

from harmofl import registry
from harmofl.data.images import LabelledImages
from harmofl.errors import RunError
from harmofl.tasks.scores import ScoreEntry
from runs import train


class Sometimes:
    """Has a value when `defined` says so for the next scoring."""

    defined: list[bool]

    def __init__(self, classes: object, thorough: bool) -> None:
        pass

    def add(self, logits: Tensor, batch: LabelledImages) -> None:
        pass

    def scores(self) -> dict[str, float]:
        is_defined = Sometimes.defined.pop(0) if Sometimes.defined else True
        return {"sometimes": 0.5} if is_defined else {}


@pytest.fixture
def sometimes(own_registries: None) -> type[Sometimes]:
    registry.scores.register(ScoreEntry("sometimes", kinds=("classification",), scorer=Sometimes))
    Sometimes.defined = []
    return Sometimes


def test_a_round_without_a_score_of_a_site_loses_to_one_with_all(tmp_path: Path, sometimes: type[Sometimes]) -> None:
    # The model of round 1 is scored in round 2, val and test at each of two sites; that of round 2 at the end.
    sometimes.defined = [False, False]
    chosen = {"training__score": "sometimes", "data__sites": ["hospital-0", "hospital-1"]}
    assert train(tmp_path / "run", rounds=2, **chosen)["best_round"] == 2  # equal scores, and more of them
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert not any("error" in record for record in records)
    scored = [record["site"] for record in records if record["phase"] == "val" and record["round"] == 1]
    assert scored == ["hospital-1"]


def test_a_selected_model_without_a_score_is_told(tmp_path: Path, sometimes: type[Sometimes]) -> None:
    sometimes.defined = [True] * 4 + [False] * 2
    chosen = {"training__score": "sometimes", "data__sites": ["hospital-0", "hospital-1"]}
    with pytest.raises(RunError, match=r"training\.score = 'sometimes': it is not defined"):
        train(tmp_path / "run", rounds=1, **chosen)
