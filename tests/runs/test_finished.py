import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harmofl.errors import UsageError
from harmofl.runs.finished import FinishedRun, read_run, read_settings
from harmofl.settings import resolve

MakeRun = Callable[..., FinishedRun]


def test_a_run_tells_its_scores_in_percent(make_run: MakeRun) -> None:
    run = make_run("fedavg", {"A": 0.9, "B": 0.8})
    assert run.scores == pytest.approx({"A": 90, "B": 80})
    assert run.average == pytest.approx(85)


def test_another_label_leaves_the_run_as_it_is(make_run: MakeRun) -> None:
    run = make_run("fedavg", {"A": 0.9, "B": 0.8})
    assert run.with_label("A row").title == "A row"
    assert run.title == "FedAvg"


def test_settings_that_a_method_got_later_have_their_defaults(tmp_path: Path) -> None:
    planned, _ = resolve("histology", "harmofl", "smoke")
    text = "\n".join(line for line in planned.to_toml().splitlines() if not line.startswith("radius"))
    (tmp_path / "config.toml").write_text(text)
    assert read_settings(tmp_path).method["radius"] == 0.05


@pytest.mark.parametrize("name", ["summary.json", "records.jsonl"])
def test_missing_file_is_named(two_runs: list[FinishedRun], name: str) -> None:
    folder = two_runs[0].folder
    (folder / name).unlink()
    with pytest.raises(UsageError, match=f"{name} is missing"):
        read_run(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", "{", "summary.json is not valid JSON"),
        ("summary.json", "[]", "summary.json should hold a JSON object"),
        (
            "summary.json",
            json.dumps({"task": "t", "test": {}}),
            "summary.json lacks method, seed, metric_name",
        ),
        ("records.jsonl", '{"round": 1, "site": "A", "phase": "val"}\n{"rou', "records.jsonl, line 2"),
        ("records.jsonl", '{"round": 1}\n', "records.jsonl, line 1 should hold round, site and phase"),
        ("config.toml", "task =", "config.toml is not valid TOML"),
    ],
)
def test_broken_file_is_named_with_what_is_wrong(
    two_runs: list[FinishedRun], name: str, content: str, message: str
) -> None:
    folder = two_runs[0].folder
    (folder / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        read_run(folder)


@pytest.mark.parametrize("test", [{"average": 0.9}, {"A": 0.9}, {"A": "high", "average": 0.9}, 0.9])
def test_summary_with_impossible_scores_is_refused(make_run: MakeRun, test: object) -> None:
    with pytest.raises(UsageError, match=r'summary.json: "test"'):
        make_run("fedavg", {"A": 0.9, "B": 0.8}, test=test)


def test_validation_scores_are_those_of_the_selected_round() -> None:
    records = [
        {"round": number, "site": site, "phase": phase, "metric": number / 10 + (site == "B") / 100 + (phase == "test")}
        for number in (1, 2, 3)
        for site in ("A", "B")
        for phase in ("val", "test")
    ]
    summary = {"task": "histology", "method": "fedavg", "seed": 0, "metric_name": "accuracy"}
    test = {"A": 0.9, "B": 0.9, "average": 0.9}
    run = FinishedRun(Path("run"), summary | {"test": test, "best_round": 2}, records).on_validation()
    assert run.scored_on == "validation"
    assert run.scores == pytest.approx({"A": 20, "B": 21})
    assert run.average == pytest.approx(20.5)
    assert {record["metric"] < 1 for record in run.records if record["phase"] == "test"} == {True}
    each = {"test": test, "best_round": None, "best_rounds": {"A": 1, "B": 3}}
    own = FinishedRun(Path("run"), summary | each, records).on_validation()
    assert own.scores == pytest.approx({"A": 10, "B": 31})
