"""Runs that differ only in how models are used train once."""

import json
from pathlib import Path
from typing import Any

import pytest

from harmofl.federation import training
from harmofl.federation.client import Client
from harmofl.federation.trained_rounds import is_passive, training_key
from harmofl.methods.adaptations import Adaptation, OwnLayers, SiteStatistics, as_received
from harmofl.settings import resolve
from runs import records, tiny


def train(out: Path, method: str, statistics: str, trained: Path | None = None, **more: Any) -> list[dict[str, Any]]:
    """The records of a run, without how long anything took."""
    settings = tiny(model__statistics=statistics, **more)
    training.train("histology", method, preset="smoke", settings=settings, out=out, trained=trained)
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records(out)]


@pytest.mark.parametrize(("method", "optimizer"), [("fedbn", "sgd"), ("scaffold", "adam")])
def test_a_run_that_trains_the_same_takes_what_another_gave_and_has_the_same_scores_to_the_bit(
    tmp_path: Path, method: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train(tmp_path / "alone", method, "site", training__optimizer=optimizer)
    first = train(tmp_path / "first", method, "method", tmp_path / "trained", training__optimizer=optimizer)

    def refuse(*_: object) -> None:
        raise AssertionError("it trains again")

    monkeypatch.setattr(Client, "_train_from", refuse)
    second = train(tmp_path / "second", method, "site", tmp_path / "trained", training__optimizer=optimizer)
    assert second == alone
    assert second != first  # the same training, other scores
    scores = [json.loads((tmp_path / name / "summary.json").read_text())["test"] for name in ("alone", "second")]
    assert scores[0] == scores[1]


def test_another_training_takes_nothing(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", "fedavg", "site", training__learning_rate=0.02)
    train(tmp_path / "first", "fedavg", "method", tmp_path / "trained")
    assert train(tmp_path / "second", "fedavg", "site", tmp_path / "trained", training__learning_rate=0.02) == alone


def test_trainings_are_told_apart_by_what_changes_them() -> None:
    def key(method: str = "fedavg", **overrides: Any) -> str:
        return training_key(resolve("histology", method, "smoke", overrides=overrides)[0])

    assert key() == key(**{"model.statistics": "site"}) == key(**{"federation.workers": 2})
    assert len({key(), key("fedprox"), key(seed=1), key(**{"data.shift": 0.5})}) == 4


def test_an_adaptation_that_takes_part_in_training_is_not_passed_over() -> None:
    class Counting(Adaptation):
        def finish(self, local: Any) -> None:
            local.memory.kept = {}

    assert all(map(is_passive, (as_received, OwnLayers(), SiteStatistics())))
    assert not is_passive(Counting())
