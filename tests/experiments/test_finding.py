import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import harmofl
from folders import segmentation_folder
from harmofl.errors import UsageError
from harmofl.experiments.finding import find_runs
from runs import train

TINY = {"data.size": 32, "training.rounds": 1, "federation.workers": 1}


def write_state(folder: Path, cells: list[dict[str, Any]]) -> None:
    """An experiment's results with these cells."""
    whole = [{"path": "", "row": cell["label"], "variation": "", "held_out": None} | cell for cell in cells]
    names = {"experiment": "e", "title": "E", "task": "segmentation", "preset": "smoke", "data": None}
    state = names | {"shows": "table", "axis": None, "cells": whole, "reference": "", "baseline": ""}
    (folder / "results.json").write_text(json.dumps(state))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return segmentation_folder(tmp_path_factory.mktemp("images"), size=32)


@pytest.fixture(scope="module")
def runs(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs on a folder: one model for all, and a model per site."""
    out = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedbn"):
        harmofl.train("segmentation", method, data=images, preset="smoke", settings=TINY, out=out / method)
    return {method: out / method for method in ("fedavg", "fedbn")}


def test_an_experiment_shows_the_first_seed_of_each_line_that_has_its_model(
    runs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells: list[dict[str, Any]] = []
    for label, seed, source in (("A", 1, "fedbn"), ("A", 0, "fedavg"), ("B", 0, "fedbn"), ("C", 0, None)):
        place = f"{label}/seed-{seed}".lower()
        if source:
            shutil.copytree(runs[source], tmp_path / place)
        cells.append({"label": label, "seed": seed, "state": "done", "folder": place})
    waiting = {"label": "D", "seed": 0, "state": "missing"}
    write_state(tmp_path, [*cells, waiting])
    found = find_runs([tmp_path])
    assert [(run.title, run.folder.parent.name, run.seed) for run in found] == [("A", "a", 0), ("B", "b", 0)]
    assert found[0].folder.name == "seed-0"
    assert "no model is kept of C" in caplog.text


def test_lines_of_one_name_are_told_apart_by_their_experiments(runs: dict[str, Path], tmp_path: Path) -> None:
    for name, source in (("one", "fedavg"), ("two", "fedbn")):
        shutil.copytree(runs[source], tmp_path / name / "a" / "seed-0")
        cell = {"label": "A", "seed": 0, "state": "done", "folder": "a/seed-0"}
        write_state(tmp_path / name, [cell])
    found = find_runs([tmp_path / "one", tmp_path / "two", runs["fedavg"]])
    assert [run.title for run in found] == ["A (one)", "A (two)", "FedAvg"]


def test_a_run_that_is_named_twice_is_shown_once(runs: dict[str, Path]) -> None:
    folder = runs["fedavg"]
    assert [run.title for run in find_runs([folder, folder.parent / "fedbn" / ".." / "fedavg"])] == ["FedAvg"]


def test_runs_of_a_moved_folder_find_their_images_where_they_lie_now(
    runs: dict[str, Path], images: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(runs["fedavg"], tmp_path / "run")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace(str(images), "/gone/images"))
    with pytest.raises(UsageError, match=r"data\.folder = '/gone/images': the run's images are gone; .* --data"):
        find_runs([run])
    assert find_runs([run], images)[0].full_settings.data.folder == str(images)
    with pytest.raises(UsageError, match=r"data\.folder = '.*nowhere': no such folder"):
        find_runs([run], tmp_path / "nowhere")


def test_what_is_no_finished_run_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"summary\.json is missing: is this the folder of a finished run"):
        find_runs([tmp_path])
    write_state(tmp_path, [])
    with pytest.raises(UsageError, match="an experiment without a finished run that has its model"):
        find_runs([tmp_path])
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(UsageError, match=r"results\.json is not what an experiment writes"):
        find_runs([tmp_path])
    with pytest.raises(UsageError, match="no run given"):
        find_runs([])


def test_runs_on_other_images_cannot_stand_side_by_side(runs: dict[str, Path], tmp_path: Path) -> None:
    train(tmp_path / "other", rounds=1)
    with pytest.raises(UsageError, match=r"differ in .*data\.folder.*task: only runs on the same images"):
        find_runs([runs["fedavg"], tmp_path / "other"])
    with pytest.raises(UsageError, match=r"data = 'x': .* was trained on synthetic hospitals"):
        find_runs([tmp_path / "other"], Path("x"))
