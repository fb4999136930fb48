"""Experiments whose cells take a moment: their processes pretend to train."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from harmofl.experiments import processes
from harmofl.experiments.cells import Experiment, read_experiment
from harmofl.experiments.results import Results
from harmofl.runs.finished import FinishedRun
from harmofl.settings import resolve
from harmofl.tasks.data_facts import find_data_facts

PLAN = """
title = "A tiny experiment"
task = "histology"
preset = "smoke"
seeds = [0, 1]

[[rows]]
name = "FedAvg"
method = "fedavg"

[[rows]]
name = "+ amplitude"
method = "harmofl"
settings.method.radius = 0.0
"""

PRETEND = """
import json, os, sys, time, tomllib
from pathlib import Path
from harmofl.errors import RunError
from harmofl.experiments import child

def write_facts(settings, path):
    if not settings["data"].get("folder"):  # torch takes longer to import than all else here
        path.write_text(os.environ["FACTS"])
        return
    from harmofl.settings import Settings
    from harmofl.tasks.data_facts import find_data_facts
    find_data_facts(Settings.model_validate(settings)).write(path)

def pretend(config, out, workers, *options):
    config, out = Path(config), Path(out)
    with open(os.environ["STARTED"], "a") as file:
        file.write(" ".join([*out.parts[-2:], *(["again"] if "resume" in options else [])]) + "\\n")
    settings = tomllib.loads(config.read_text())
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.toml").write_text(config.read_text())
    write_facts(settings, out / "data.json")
    if settings["method"]["name"] == "moon":
        print("working on it")
        raise RunError("no memory left")
    if settings["method"]["name"] == "fedprox":
        time.sleep(600)
    scores = {"A": 0.9, "B": 0.8 - settings["seed"] / 10}
    records = [{"round": 1, "site": site, "phase": "test", "metric": score} for site, score in scores.items()]
    (out / "records.jsonl").write_text("".join(json.dumps(record) + "\\n" for record in records))
    test = scores | {"average": sum(scores.values()) / 2, "std": 0.1}
    names = {"task": settings["task"], "method": settings["method"]["name"], "seed": settings["seed"]}
    summary = names | {"title": "?", "norm": "batch", "metric_name": "accuracy", "test": test, "seconds": 3.0}
    (out / "summary.json").write_text(json.dumps(summary))

child._train = pretend
child.main()
"""


@pytest.fixture
def write_plan(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = PLAN, name: str = "tiny") -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Let cells pretend; what was started so far."""
    log = tmp_path / "started.txt"
    log.touch()
    monkeypatch.setenv("STARTED", str(log))
    monkeypatch.setenv("FACTS", json.dumps(find_data_facts(resolve("histology", "fedavg", "smoke")[0]).to_json()))
    monkeypatch.setattr(processes, "COMMAND", [sys.executable, "-c", PRETEND])
    return lambda: sorted(log.read_text().splitlines())


@pytest.fixture
def results_of(write_plan: Callable[..., Path], tmp_path: Path) -> Callable[..., Results]:
    """Results with scores given by hand, by the path of their cell."""

    def make(scores: Mapping[str, Mapping[str, float]], text: str = PLAN, **unseen: Any) -> Results:
        experiment = read_experiment(write_plan(text))
        cells = {cell.path: cell for cell in experiment.cells}
        return Results(experiment, {path: finished(experiment, cells[path], values) for path, values in scores.items()})

    def finished(experiment: Experiment, cell: Any, values: Mapping[str, float]) -> FinishedRun:
        test = dict(values) | {"average": fmean(values.values())}
        names = {"task": cell.settings.task, "method": cell.settings.method["name"], "seed": cell.seed}
        summary: dict[str, Any] = names | {"title": "?", "norm": cell.settings.model.norm, "metric_name": "accuracy"}
        summary |= {"test": test, "seconds": 60.0, "best_round": 1}
        if cell.held_out:
            summary["unseen"] = {cell.held_out: {"metric": values["unseen"]}}
        return FinishedRun(tmp_path / "out" / cell.path, json.loads(json.dumps(summary)), [], cell.settings.to_toml())

    return make
