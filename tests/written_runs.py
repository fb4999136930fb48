"""Run folders written by hand, so that these tests need no training."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from harmofl.data.facts import DataFacts
from harmofl.runs.finished import FinishedRun, read_run

TITLES = {"fedavg": "FedAvg", "harmofl": "HarmoFL", "fedbn": "FedBN", "centralized": "Centralized"}

CONFIG = """\
task = "histology"
seed = {seed}

[data]
size = 96
shift = 1.0

[model]
network = "small"
norm = "batch"

[method]
name = "{method}"
{own}
[training]
rounds = {rounds}
batch_size = 32
"""

MakeRun = Callable[..., FinishedRun]
MakeExperiment = Callable[..., Path]


def write_run(
    folder: Path,
    method: str,
    scores: Mapping[str, float],
    *,
    seed: int = 0,
    rounds: int = 6,
    failed: tuple[str, int] | None = None,
    **summary: object,
) -> Path:
    """Write a run whose test scores rise to `scores` while its drift falls."""
    folder.mkdir(parents=True)
    test = dict(scores) | {"average": fmean(scores.values()), "std": stdev(scores.values())}
    content = {
        "task": "histology",
        "method": method,
        "title": TITLES[method],
        "seed": seed,
        "metric_name": "accuracy",
        "best_round": max(1, rounds - 1),
        "test": test,
        "versions": {"harmofl": "0.1.0", "torch": "2.13.0"},
        "seconds": 75.0,
        "norm": "batch",
    } | summary
    (folder / "summary.json").write_text(json.dumps(content))
    own = 'band = "dc"\nradius = 0.05\n' if method == "harmofl" else ""
    (folder / "config.toml").write_text(CONFIG.format(method=method, seed=seed, own=own, rounds=rounds))
    DataFacts(synthetic=True, sites=("A", "B", "C"), channels=3, classes=("normal", "tumor")).write(
        folder / "data.json"
    )
    records = _records(method, scores, seed, rounds, failed)
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def _records(
    method: str, scores: Mapping[str, float], seed: int, rounds: int, failed: tuple[str, int] | None
) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    start = 0.02 if method == "harmofl" else 0.5
    for number in range(1, rounds + 1):
        for rank, (site, score) in enumerate(scores.items()):
            train: dict[str, object] = {"round": number, "site": site, "phase": "train"}
            if failed == (site, number):
                records.append(train | {"error": "out of memory"})
                continue
            amounts = {"num_examples": 100, "num_steps": 4, "bytes_up": 1_000_000, "bytes_down": 2_000_000}
            value = start * (1 + 0.1 * rank) / math.sqrt(number)
            records.append(train | {"loss": 1 / number, "drift": value, "seconds": 0.5} | amounts)
            metric = score - 0.3 * (1 - number / rounds) ** 2 + 0.004 * math.sin(3 * number + seed + rank)
            metric = score if number == rounds else metric
            for phase in ("val", "test"):
                records.append(
                    {"round": number, "site": site, "phase": phase, "loss": 0.3, "metric": metric, "auc": 0.9}
                )
        records.append({"round": number, "site": "server", "phase": "train", "seconds": 0.1})
    return records


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(method: str, scores: Mapping[str, float], *, seed: int = 0, **options: object) -> FinishedRun:
        folder = tmp_path / "runs" / f"{method}-{seed}"
        return read_run(write_run(folder, method, scores, seed=seed, **options))  # type: ignore[arg-type]

    return make


@pytest.fixture
def two_runs(make_run: MakeRun) -> list[FinishedRun]:
    """FedAvg and HarmoFL at three sites: HarmoFL is 2 points better on average, and worse at B."""
    return [
        make_run("fedavg", {"A": 0.90, "B": 0.80, "C": 0.70}),
        make_run("harmofl", {"A": 0.92, "B": 0.78, "C": 0.76}),
    ]


def experiment_cell(method: str, seed: int, **values: Any) -> dict[str, Any]:
    """A finished cell, as results.json tells of it."""
    path = f"{method}/seed-{seed}"
    names = {"path": path, "label": TITLES[method], "row": TITLES[method], "variation": "", "held_out": None}
    return names | {"seed": seed, "state": "done", "folder": path, "unseen": None} | values


@pytest.fixture
def make_experiment(tmp_path: Path) -> MakeExperiment:
    """An experiment's folder: per method the scores of each seed, all compared with the first method."""

    def make(scores: Mapping[str, list[Mapping[str, float]]], **values: Any) -> Path:
        out = tmp_path / "experiment"
        cells = [experiment_cell(method, seed) for method, seeds in scores.items() for seed in range(len(seeds))]
        for each in cells:
            method = each["path"].partition("/")[0]
            write_run(out / each["path"], method, scores[method][each["seed"]], seed=each["seed"])
        state = {
            "experiment": "tiny",
            "title": "A tiny experiment",
            "task": "histology",
            "preset": "smoke",
            "data": None,
            "shows": "table",
            "axis": None,
            "reference": cells[0]["row"],
            "baseline": "",
            "cells": cells,
        }
        (out / "results.json").write_text(json.dumps(state | values))
        return out

    return make


@pytest.fixture
def experiment(make_experiment: MakeExperiment) -> Path:
    """Two methods, three seeds, three sites: HarmoFL is 2 points better on average, and worse at B."""
    fedavg = [{"A": 0.90 + seed / 100, "B": 0.80 + seed / 100, "C": 0.70 + seed / 100} for seed in range(3)]
    harmofl = [{"A": 0.92 + seed / 100, "B": 0.78 + seed / 100, "C": 0.76 + seed / 100} for seed in range(3)]
    return make_experiment({"fedavg": fedavg, "harmofl": harmofl})
