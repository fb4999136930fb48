import html
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from folders import segmentation_folder
from harmofl.cli import app
from harmofl.errors import UsageError
from harmofl.events import CellFinished, Event, ExperimentProgressed, RunningCell, ignore
from harmofl.experiments.cells import read_experiment
from harmofl.experiments.folder import hold_folder
from harmofl.experiments.kept import Kept
from harmofl.experiments.lines import read_lines
from harmofl.experiments.report import write_report
from harmofl.experiments.results import gather
from harmofl.experiments.runner import make_fact_finder, num_jobs, run_experiment

WritePlan = Callable[..., Path]
Started = Callable[[], list[str]]

ALL = ["amplitude seed-0", "amplitude seed-1", "fedavg seed-0", "fedavg seed-1"]
FAILING = '\n[[rows]]\nname = "MOON"\nmethod = "moon"\n'
ENDLESS = '\n[[rows]]\nname = "FedProx"\nmethod = "fedprox"\n'


def state_of(out: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((out / "results.json").read_text())
    return state


def test_every_cell_is_run_once_and_never_again(write_plan: WritePlan, started: Started, tmp_path: Path) -> None:
    plan, out = write_plan(), tmp_path / "out"
    results = run_experiment(plan, out)
    assert started() == ALL
    assert not results.missing
    assert [cell["test"]["average"] for cell in state_of(out)["cells"]] == pytest.approx([0.85, 0.8, 0.85, 0.8])
    assert {"table.md", "table.csv", "table.tex"} <= {path.name for path in out.iterdir()}

    run_experiment(plan, out, resume=True)
    assert started() == ALL


def test_the_command_on_the_page_repeats_the_experiment_from_its_folder(
    write_plan: WritePlan, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = write_plan(), tmp_path / "out"
    run_experiment(plan, out)
    plan.unlink()
    page = write_report(out).read_text(encoding="utf-8")
    command = re.search(r"<code>(harmofl experiment [^<]*)</code>", page)
    assert command is not None
    monkeypatch.chdir(out)
    assert CliRunner().invoke(app, shlex.split(html.unescape(command[1]))[1:]).exit_code == 0
    assert started() == sorted(2 * ALL)
    again, first = state_of(tmp_path / "out-again")["cells"], state_of(out)["cells"]
    assert [cell["test"] for cell in again] == [cell["test"] for cell in first]


def test_seeds_and_rows_may_be_added_to_an_experiment(write_plan: WritePlan, started: Started, tmp_path: Path) -> None:
    plan, out = write_plan(), tmp_path / "out"
    text = plan.read_text()
    run_experiment(plan, out)
    run_experiment(write_plan(text.replace("[0, 1]", "[0, 1, 2]")), out, resume=True)
    assert started() == sorted([*ALL, "amplitude seed-2", "fedavg seed-2"])


def test_a_failed_cell_is_shown_the_rest_go_on_and_it_is_tried_again(
    write_plan: WritePlan, started: Started, tmp_path: Path
) -> None:
    plan, out = write_plan(), tmp_path / "out"
    plan = write_plan(plan.read_text().replace("[0, 1]", "[0]") + FAILING)
    seen: list[Event] = []
    results = run_experiment(plan, out, watch=seen.append)
    assert results.errors == {"moon/seed-0": "no memory left"}
    assert [cell["state"] for cell in state_of(out)["cells"]] == ["done", "done", "failed"]
    assert "Missing, 1 of 3 cells: MOON, seed 0 (no memory left)." in (out / "table.md").read_text()
    assert [event.cell for event in seen if isinstance(event, CellFinished) and event.error] == ["MOON, seed 0"]

    run_experiment(plan, out, resume=True)
    assert started() == ["amplitude seed-0", "fedavg seed-0", "moon seed-0", "moon seed-0 again"]


def test_watchers_hear_of_cells_done_running_and_left(write_plan: WritePlan, started: Started, tmp_path: Path) -> None:
    seen: list[Event] = []
    run_experiment(write_plan(), tmp_path / "out", jobs=1, watch=seen.append)
    states = [event for event in seen if isinstance(event, ExperimentProgressed)]
    assert (states[0].done, states[0].total, states[0].seconds_left) == (0, 4, None)
    assert (states[-1].done, states[-1].running, states[-1].seconds_left) == (4, (), 0)
    one_done = next(state for state in states if state.done == 1 and state.running)
    assert replace(one_done.running[0], seconds=0) == RunningCell("+ amplitude, seed 0", 0, 2, 0)
    assert one_done.seconds_left is not None
    assert 2 * 3 < one_done.seconds_left <= 3 * 3  # a cell took 3 seconds: two wait, one has begun
    assert [event.tried for event in seen if isinstance(event, CellFinished)] == [1, 2, 3, 4]


def test_kept_results_count_as_done_without_being_run(write_plan: WritePlan, started: Started, tmp_path: Path) -> None:
    plan, kept = write_plan(), tmp_path / "kept"
    run_experiment(plan, tmp_path / "first", kept=kept)
    results = run_experiment(plan, tmp_path / "second", kept=kept)
    assert started() == ALL
    assert not results.missing
    assert {path.name for path in (tmp_path / "second").iterdir()} >= {"results.json", "table.md"}
    assert not (tmp_path / "second" / "fedavg").exists()
    tables = [(tmp_path / name / "table.md").read_text() for name in ("first", "second")]
    assert tables[0] == tables[1]
    lines = [
        [(run.title, run.seed, run.scores, len(run.records)) for run in read_lines(tmp_path / name)]
        for name in ("first", "second")
    ]
    assert lines[0] == lines[1]


def test_cells_that_were_finished_but_not_kept_are_kept_later(
    write_plan: WritePlan, started: Started, tmp_path: Path
) -> None:
    plan, out, kept = write_plan(), tmp_path / "out", tmp_path / "kept"
    run_experiment(plan, out)
    run_experiment(plan, out, resume=True, kept=kept)
    assert started() == ALL
    assert len((kept / "tiny.jsonl").read_text().splitlines()) == 4


def test_results_of_other_images_do_not_count(write_plan: WritePlan, started: Started, tmp_path: Path) -> None:
    images = segmentation_folder(tmp_path / "images")
    plan = write_plan('title = "T"\ntask = "segmentation"\npreset = "smoke"\n[[rows]]\nname = "A"\nmethod = "fedavg"\n')
    experiment = read_experiment(plan, images)
    [cell], out, kept = experiment.cells, tmp_path / "out", Kept(tmp_path / "kept")
    run_experiment(plan, out, data=images)
    kept.keep(experiment, cell, out / "a" / "seed-0")

    assert not gather(experiment, out, find_facts=make_fact_finder(ignore)).missing
    assert not gather(experiment, kept=kept, find_facts=make_fact_finder(ignore)).missing
    shutil.copy(images / "site-0" / "p0-0.png", images / "site-0" / "p0-1.png")
    assert gather(experiment, out, find_facts=make_fact_finder(ignore)).missing
    assert gather(experiment, kept=kept, find_facts=make_fact_finder(ignore)).missing
    (images / "manifest.csv").unlink()
    with pytest.raises(UsageError, match="images"):
        run_experiment(plan, tmp_path / "again", data=images, kept=tmp_path / "kept")
    assert started() == ["a seed-0"]


def test_results_of_other_masks_do_not_count(write_plan: WritePlan, started: Started, tmp_path: Path) -> None:
    images = segmentation_folder(tmp_path / "images")
    plan = write_plan('title = "T"\ntask = "segmentation"\npreset = "smoke"\n[[rows]]\nname = "A"\nmethod = "fedavg"\n')
    experiment = read_experiment(plan, images)
    [cell], out, kept = experiment.cells, tmp_path / "out", Kept(tmp_path / "kept")
    run_experiment(plan, out, data=images)
    kept.keep(experiment, cell, out / "a" / "seed-0")
    assert not gather(experiment, kept=kept, find_facts=make_fact_finder(ignore)).missing
    shutil.copy(images / "site-0" / "p0-0-mask.png", images / "site-0" / "p0-1-mask.png")
    assert gather(experiment, out, find_facts=make_fact_finder(ignore)).missing
    assert gather(experiment, kept=kept, find_facts=make_fact_finder(ignore)).missing


def test_a_variation_that_does_not_fit_the_data_is_a_failed_cell(
    write_plan: WritePlan, started: Started, tmp_path: Path
) -> None:
    images = segmentation_folder(tmp_path / "images")
    rows = '[[rows]]\nname = "A"\nmethod = "fedavg"\n[[variations]]\nname = "all"\n'
    wrong = '[[variations]]\nname = "one"\nsettings.data.sites = ["site-9"]\n'
    plan = write_plan(f'title = "T"\ntask = "segmentation"\npreset = "smoke"\n{rows}{wrong}')
    out = tmp_path / "out"
    seen: list[Event] = []
    results = run_experiment(plan, out, data=images, watch=seen.append)
    finished = [(event.cell, bool(event.error)) for event in seen if isinstance(event, CellFinished)]
    assert finished == [("A, one, seed 0", True), ("A, all, seed 0", False)]  # before anything is trained
    assert started() == ["all seed-0"]
    assert list(results.errors) == ["a/one/seed-0"]
    assert results.errors["a/one/seed-0"].startswith("unknown site 'site-9'")
    assert [cell["state"] for cell in state_of(out)["cells"]] == ["done", "failed"]
    assert "A, one, seed 0 (unknown site 'site-9'" in (out / "table.md").read_text()


def test_a_folder_that_holds_an_experiment_or_anything_else_is_refused(
    write_plan: WritePlan, started: Started, tmp_path: Path
) -> None:
    plan, out = write_plan(), tmp_path / "out"
    text = plan.read_text()
    with pytest.raises(UsageError, match="holds no experiment to resume"):
        run_experiment(plan, out, resume=True)
    run_experiment(plan, out)
    with pytest.raises(UsageError, match="already holds an experiment: add --resume"):
        run_experiment(plan, out)
    with pytest.raises(UsageError, match=r"holds another experiment \(preset = 'smoke', not 'small'"):
        run_experiment(plan, out, preset="small", resume=True)
    with pytest.raises(UsageError, match=r"holds another experiment \(amplitude/seed-0 was run with other settings"):
        run_experiment(write_plan(text.replace("radius = 0.0", "radius = 0.1")), out, resume=True)
    with pytest.raises(UsageError, match="is not empty: choose another --out"):
        run_experiment(plan, tmp_path)
    assert started() == ALL


def test_two_processes_never_run_one_experiment(write_plan: WritePlan, started: Started, tmp_path: Path) -> None:
    plan, out = write_plan(), tmp_path / "out"
    with (
        hold_folder(out, read_experiment(plan), resume=False),
        pytest.raises(UsageError, match="in use by another process"),
    ):
        run_experiment(plan, out)


def test_what_is_wrong_with_the_data_stops_everything_at_once(
    write_plan: WritePlan, started: Started, tmp_path: Path
) -> None:
    row = '[[rows]]\nname = "FedAvg"\nmethod = "fedavg"\n'
    plan = write_plan(f'title = "T"\ntask = "segmentation"\n{row}')
    with pytest.raises(UsageError, match="segmentation has no synthetic hospitals"):
        run_experiment(plan, tmp_path / "out")
    with pytest.raises(UsageError, match="nowhere"):
        run_experiment(plan, tmp_path / "out", data=tmp_path / "nowhere")
    assert started() == []


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_an_interrupt_leaves_no_process_behind(write_plan: WritePlan, started: Started, tmp_path: Path) -> None:
    plan = write_plan()
    plan = write_plan(plan.read_text().replace("[0, 1]", "[0]") + ENDLESS)

    def interrupt(event: Event) -> None:
        if "fedprox seed-0" in started() and isinstance(event, ExperimentProgressed) and event.done == 2:
            raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(plan, tmp_path / "out", watch=interrupt)
    assert time.monotonic() - begin < 30
    assert not [command for command in children(os.getpid()) if b"pretend" in command]
    assert [cell["state"] for cell in state_of(tmp_path / "out")["cells"]] == ["done", "done", "missing"]


def children(parent: int) -> list[bytes]:
    """The command lines of a process's children."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append((entry / "cmdline").read_bytes())
        except OSError:
            continue
    return found


def test_jobs_stay_within_the_cores_and_the_cells(write_plan: WritePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = read_experiment(write_plan()).cells
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(3)), raising=False)
    assert [num_jobs(wanted, cells) for wanted in (None, 1, 2, 99, 0)] == [3, 1, 2, 3, 1]
    assert num_jobs(None, cells[:2]) == 2
    assert num_jobs(None, []) == 1
