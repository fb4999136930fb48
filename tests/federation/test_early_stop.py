"""`training.stop_after`: a run ends when the mean validation score no longer improves."""

import json
from pathlib import Path
from typing import Any

import pytest

from harmofl.displays.plain import PlainDisplay
from harmofl.events import Event, RoundsFinished
from harmofl.federation.messages import Reply, Request
from harmofl.reporting.words import summarize
from harmofl.runs.finished import read_run
from runs import altered, differences, records, serve, stop_after_round, train

STILL = {"model__norm": "group", "training__learning_rate": 1e-30}
"""Nothing changes, so no round is better than the first."""


def scoring(means: dict[int, float]) -> Any:
    """Replies whose validation scores are those of a table, by the round of the model that was scored."""

    def change(request: Request, reply: Reply) -> Reply:
        number = request.round - 1 if request.kind == "train" else request.round
        if "val" not in reply.metrics:
            return reply
        val = {site: {**scores, "metric": means[number]} for site, scores in reply.metrics["val"].items()}
        return altered(reply, metrics={**reply.metrics, "val": val})

    return change


def test_a_run_ends_when_the_score_of_some_rounds_is_no_better(tmp_path: Path) -> None:
    # Round 3 equals the best and round 4 is worse, which is known when the sites have scored it, in round 5.
    means = {1: 0.5, 2: 0.6, 3: 0.6, 4: 0.55, 5: 0.1}
    serve(tmp_path / "run", scoring(means), rounds=9, training__stop_after=2)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_early"] == {"round": 5, "without_improvement": 2}
    assert summary["best_round"] == 2
    assert max(record["round"] for record in records(tmp_path / "run")) == 5
    run = read_run(tmp_path / "run")
    assert run.rounds == 5
    words = "ended after round 5, as the mean validation score had not improved for 2 rounds."
    assert any(sentence.endswith(words) for sentence in summarize([run]))


def test_a_run_whose_last_round_is_due_anyway_did_not_end_early(tmp_path: Path) -> None:
    serve(tmp_path / "run", scoring({1: 0.5, 2: 0.5, 3: 0.5}), rounds=3, training__stop_after=1)
    assert "stopped_early" not in json.loads((tmp_path / "run" / "summary.json").read_text())
    assert read_run(tmp_path / "run").rounds == 3


def test_an_interrupted_run_ends_in_the_same_round_with_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"rounds": 8, "training__stop_after": 2, **STILL}
    seen: list[Event] = []
    summary = train(tmp_path / "whole", "fedavg", watch=seen.append, **options)
    assert summary["stopped_early"] == {"round": 4, "without_improvement": 2}
    assert RoundsFinished(4, 2) in seen

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", "fedavg", watch=stop_after_round(3), **options)
    train(tmp_path / "run", "fedavg", resume=True, watch=PlainDisplay(), **options)
    assert differences(tmp_path / "whole", tmp_path / "run") == []
    words = "  ended after round 4, as the mean validation score had not improved for 2 rounds"
    assert words in capsys.readouterr().out.splitlines()
