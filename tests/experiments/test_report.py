import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harmofl.analysis.measured_terms import RunTerms, Terms, write_terms
from harmofl.data.facts import DataFacts
from harmofl.errors import RunError, UsageError
from harmofl.experiments.report import write_report
from harmofl.runs.finished import FinishedRun
from html_tables import table_rows

MakeRun = Callable[..., FinishedRun]
MakeExperiment = Callable[..., Path]

PAPER = {"source": "Somebody, 2022", "columns": ["A", "Average"], "scores": {"FedAvg": [[61.25, 0.5], 62.75]}}


def text_of(folder: Path) -> str:
    page = write_report(folder)
    assert page == folder / "report.html"
    return page.read_text(encoding="utf-8")


def change(folder: Path, **values: Any) -> None:
    path = folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cells_of(folder: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["cells"]
    return cells


def test_a_run_is_reported_from_its_folder(two_runs: list[FinishedRun]) -> None:
    text = text_of(two_runs[0].folder)
    for content in ("FedAvg on histology", "FedAvg reaches 80.0\N{NO-BREAK SPACE}%", "training.batch_size", "2.13.0"):
        assert content in text
    assert "harmofl train --config config.toml --out ../fedavg-0-again" in text


def test_a_run_is_reported_again_beside_the_report_before(two_runs: list[FinishedRun]) -> None:
    assert text_of(two_runs[0].folder) == text_of(two_runs[0].folder)


def test_a_folder_of_runs_is_one_report_that_names_what_is_not_finished(two_runs: list[FinishedRun]) -> None:
    runs = two_runs[0].folder.parent
    (runs / "moon").mkdir()
    (runs / "moon" / "config.toml").write_text('task = "histology"')
    text = text_of(runs)
    assert "HarmoFL is ahead with 82.0" in text
    assert "1 of 3 runs is missing" in text
    ((reason,),) = table_rows(text)["moon"]
    assert reason.startswith("not finished")


def test_a_hospital_that_took_no_part_has_a_table_of_its_own(make_run: MakeRun) -> None:
    unseen = {"X": {"metric": 0.625, "note": "statistics of its own images"}}
    text = text_of(make_run("fedbn", {"A": 0.9, "B": 0.8}, unseen=unseen).folder)
    assert "Hospitals that took no part" in text
    assert ["0", "X", "62.50", "statistics of its own images"] in table_rows(text)["FedBN"]


def test_runs_on_images_of_ones_own_go_on_with_their_model(make_run: MakeRun) -> None:
    run = make_run("fedavg", {"A": 0.9, "B": 0.8})
    (run.folder / "config.toml").write_text(run.config.replace("[data]\n", '[data]\nfolder = "images"\n'))
    replace(DataFacts.read(run.folder / "data.json"), synthetic=False).write(run.folder / "data.json")
    (run.folder / "model").mkdir()
    text = text_of(run.folder)
    assert "harmofl evaluate model --data FOLDER" in text
    assert "harmofl predict model IMAGES --site SITE --out predictions" in text, "each site has a model of its own"
    assert "phantom" not in text
    (run.folder / "model" / "model.safetensors").touch()
    assert "harmofl predict model IMAGES --out predictions" in text_of(run.folder)


def test_an_experiment_says_who_is_ahead_how_surely_and_where(experiment: Path) -> None:
    text = text_of(experiment)
    assert "<h1>A tiny experiment</h1>" in text
    # Each seed adds a point to every score, so the means are those of the second seed.
    assert "HarmoFL is ahead with 83.0\N{NO-BREAK SPACE}% average test accuracy over 3 hospitals, 2.0 points" in text
    assert "HarmoFL is ahead of FedAvg in 6 of 9 pairs of site and seed" in text
    wins = "Against FedAvg, HarmoFL wins at A (+2.0 points) and C (+6.0 points); it loses at B (−2.0 points)"
    assert wins in text
    assert "Is it more than noise?" in text
    assert "harmofl experiment tiny.toml --preset smoke --out ../experiment-again" in text
    assert "harmofl train --config harmofl/seed-2/config.toml --out harmofl/seed-2-again" in text
    assert "missing" not in text.partition("<script>")[0].partition("<body>")[2]


def test_every_line_is_compared_with_the_row_that_the_user_names(experiment: Path) -> None:
    text = write_report(experiment, reference="HarmoFL").read_text()
    rows = table_rows(text)
    assert ["HarmoFL", "−2.00", "3 of 9"] in [cells[:3] for cells in rows["FedAvg"]]
    assert "FedAvg" not in [cells[0] for cells in rows["HarmoFL"]]
    with pytest.raises(UsageError, match="unknown reference 'HarmFL'; did you mean 'HarmoFL'"):
        write_report(experiment, reference="HarmFL")


def test_runs_are_compared_with_one_that_the_user_names(two_runs: list[FinishedRun]) -> None:
    folder = two_runs[0].folder.parent
    assert "Is it more than noise?" not in text_of(folder)
    assert "Is it more than noise?" in write_report(folder, reference="FedAvg").read_text()
    with pytest.raises(UsageError, match="unknown reference 'moon'"):
        write_report(folder, reference="moon")


def test_images_are_named_as_seen_from_the_page(experiment: Path) -> None:
    change(experiment, data=str(experiment.parent / "my images"))
    command = "harmofl experiment tiny.toml --data &#39;../my images&#39; --preset smoke --out ../experiment-again"
    assert command in text_of(experiment)


def test_the_page_warns_where_every_method_selected_its_last_round(make_run: MakeRun) -> None:
    scores = {"A": 0.9, "B": 0.8}
    first = make_run("fedavg", scores, best_round=6)
    second = make_run("harmofl", scores)
    references = make_run("centralized", scores)
    assert "too short" not in text_of(first.folder.parent)
    assert "FedAvg selected its last round: training was too short" in text_of(first.folder)
    shutil.rmtree(second.folder)
    make_run("harmofl", scores, best_round=6)
    assert references.summary["best_round"] == 5  # a reference is not in competition
    assert "Every method selected its last round: training was too short" in text_of(first.folder.parent)


def test_an_experiments_figures_are_files_too(experiment: Path) -> None:
    write_report(experiment)
    names = {"scores-by-site", "convergence", "drift", "drift-by-site", "score-by-bytes"}
    found = {path.name for path in (experiment / "figures").iterdir()}
    assert found == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}


def test_cells_that_failed_or_wait_are_named_with_their_seeds(experiment: Path) -> None:
    cells = cells_of(experiment)
    cells[0] |= {"state": "failed", "error": "no <memory> left"}
    cells[4] |= {"state": "missing"}
    cells[5] |= {"state": "missing"}
    change(experiment, cells=cells)
    text = text_of(experiment)
    assert "3 of 6 cells are missing" in text
    assert table_rows(text)["FedAvg, seed 0"] == [["failed: no <memory> left"]]
    assert table_rows(text)["HarmoFL, seeds 1 and 2"] == [["not run yet"]]
    assert "harmofl experiment tiny.toml --preset smoke --out . --resume" in text


def test_the_papers_table_stands_apart_and_is_marked(experiment: Path) -> None:
    change(experiment, paper=PAPER)
    ours, _, papers = text_of(experiment).partition("What the paper printed")
    assert "61.25" not in ours
    assert "As published, not our runs: Somebody, 2022" in papers
    assert '61.25 <span class="spread">(0.50)</span>' in papers


def test_a_curve_tells_the_best_setting_of_each_row(experiment: Path) -> None:
    cells = cells_of(experiment)
    for cell in cells:
        x = "dc" if cell["row"] == "HarmoFL" else "none"
        cell |= {"row": "ours", "x": x}
    change(experiment, cells=cells, shows="curve", axis="method.band", reference="ours")
    text = text_of(experiment)
    assert "ours is best at band dc (83.0\N{NO-BREAK SPACE}%) and worst at none (81.0\N{NO-BREAK SPACE}%)." in text
    assert (experiment / "figures" / "score-curve.svg").exists()


def test_named_variations_are_drawn_and_the_best_of_each_row_is_told(experiment: Path) -> None:
    cells = cells_of(experiment)
    for cell in cells:
        cell |= {"row": "ours", "variation": "group norm" if cell["row"] == "HarmoFL" else "batch norm"}
    change(experiment, cells=cells, reference="ours", baseline="batch norm")
    text = text_of(experiment)
    assert "ours is best with group norm (83.0\N{NO-BREAK SPACE}%) and worst with batch norm (81.0" in text
    assert "of each row under each variation" in text
    assert (experiment / "figures" / "scores-by-variation.svg").exists()


def test_scores_at_held_out_hospitals_are_the_table(make_experiment: MakeExperiment) -> None:
    out = make_experiment({"fedavg": [{"A": 0.9, "B": 0.8}], "fedbn": [{"A": 0.9, "B": 0.8}]})
    cells = []
    for cell in cells_of(out):
        for site, score in (("A", 0.5), ("B", 0.75)):
            folder = f"{cell['folder']}-{site}"
            shutil.copytree(out / cell["folder"], out / folder)
            path = out / folder / "summary.json"
            unseen = {site: {"metric": score, "note": "by its own statistics"}}
            path.write_text(json.dumps(json.loads(path.read_text()) | {"unseen": unseen}))
            cells.append(cell | {"held_out": site, "folder": folder, "path": folder, "unseen": unseen})
    change(out, cells=cells, comparisons=[])
    text = text_of(out)
    assert "at the hospital that took no part" in text
    assert "“FedAvg”, “FedBN”: by its own statistics." in text
    assert '62.50 <span class="spread">' in text
    assert "Training, round by round" not in text
    assert "What it cost" not in text
    assert "without A, seed 0" in text
    assert "of models that were trained without it" in text
    assert {path.stem for path in (out / "figures").iterdir()} == {"scores-at-unseen-hospital"}
    assert "* FedAvg, FedBN: by its own statistics" in (out / "figures/scores-at-unseen-hospital.svg").read_text()


def test_the_drift_stands_beside_the_terms_of_its_bound_where_they_were_measured(experiment: Path) -> None:
    assert "claimed as proven" not in text_of(experiment)
    terms = Terms(2, {"A": 1.0}, {"A": 2.0}, 3.0, {"A": 0.5}, {"noise": 1.0})
    (experiment / "landscape").mkdir()
    write_terms(experiment / "landscape", [RunTerms("../fedavg/seed-1", "x", {"A": {1: 0.5}}, terms)])
    assert "The theorem is not claimed as proven" in text_of(experiment)
    assert ">FedAvg</text>" in (experiment / "figures" / "drift-terms.svg").read_text(encoding="utf-8")


def test_what_cannot_be_reported_is_said_in_words(
    tmp_path: Path, experiment: Path, two_runs: list[FinishedRun]
) -> None:
    with pytest.raises(UsageError, match="nowhere is not a folder"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"neither a finished run \(summary.json\) nor an experiment"):
        write_report(tmp_path / "empty")
    (two_runs[0].folder / "summary.json").unlink()
    with pytest.raises(UsageError, match=r"no finished run yet.*--resume"):
        write_report(two_runs[0].folder)
    change(experiment, cells=[])
    with pytest.raises(UsageError, match="without a finished cell"):
        write_report(experiment)
    (experiment / "results.json").write_text("{}")
    with pytest.raises(UsageError, match=r"results\.json is not what an experiment writes"):
        write_report(experiment)
    (experiment / "results.json").write_text("{")
    with pytest.raises(UsageError, match=r"results\.json cannot be read"):
        write_report(experiment)


def test_a_full_disk_is_a_failure_and_no_wrong_usage(
    two_runs: list[FinishedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = two_runs[0].folder

    def full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"report\.html cannot be written: No space left on device"):
        write_report(folder)
    assert not (folder / "report.html").exists()
