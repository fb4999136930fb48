import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harmofl.experiments.results import Results
from harmofl.experiments.writing import results_table, write_results

ResultsOf = Callable[..., Results]

ROWS = '[[rows]]\nname = "FedAvg"\nmethod = "fedavg"\n[[rows]]\nname = "HarmoFL"\nmethod = "harmofl"\n'
PAPER = (
    '[paper]\nsource = "A & B, table 9"\ncolumns = ["X", "Average"]\n[paper.scores]\nFedAvg = [70.0, [71.5, 2.25]]\n'
)
START = 'title = "Tissue & co"\ntask = "histology"\npreset = "smoke"\nseeds = [0, 1]\n'

SCORES = {
    "fedavg/seed-0": {"A": 0.90, "B": 0.80},
    "fedavg/seed-1": {"A": 0.92, "B": 0.84},
    "harmofl/seed-0": {"A": 0.94, "B": 0.80},
    "harmofl/seed-1": {"A": 0.94, "B": 0.82},
}
"""FedAvg A 91 (√2), B 82 (2√2), average 86.5; HarmoFL A 94 (0), B 81 (√2), average 87.5."""


def test_the_table_agrees_with_numbers_worked_out_by_hand(results_of: ResultsOf) -> None:
    table = results_table(results_of(SCORES, START + ROWS + PAPER))
    texts = {row.title: [cell.text for cell in row.cells] for row in table.rows}
    assert texts == {
        "FedAvg": ["91.00 (1.41)", "82.00 (2.83)", "86.50 (6.36)", "2.12", "71.50 (2.25)"],
        "HarmoFL": ["94.00 (0.00)", "81.00 (1.41)", "87.50 (9.19)", "0.71", "–"],
    }
    assert table.caption == "Tissue & co: test accuracy in percent, histology, of the selected round"
    assert table.columns[-1].name == "Paper's average"
    assert "Paper's average (std over sites): as published, A & B, table 9; not from our runs." in table.notes
    assert [cell.best for cell in table.rows[1].cells] == [True, False, True, False, False]


def test_a_line_of_a_variation_stands_beside_the_papers_average_of_its_method(results_of: ResultsOf) -> None:
    varied = '[[variations]]\nname = "constant rate"\nsettings.training.learning_rate_schedule = "constant"\n'
    scores = {"fedavg/constant-rate/seed-0": {"A": 0.9}, "harmofl/constant-rate/seed-0": {"A": 0.9}}
    rows = results_table(results_of(scores, START + ROWS + varied + PAPER)).rows
    assert [(row.title, row.cells[-1].text) for row in rows] == [
        ("FedAvg, constant rate", "71.50 (2.25)"),
        ("HarmoFL, constant rate", "–"),
    ]


def test_the_caption_tells_norm_hyperparameters_and_what_differs_from_the_defaults(results_of: ResultsOf) -> None:
    text = START + "[settings.training]\nrounds = 3\n" + ROWS + "settings.method.radius = 0.5\n"
    notes = results_table(results_of(SCORES, text)).notes
    assert "Normalization layers: batch." in notes
    training = (
        "rounds 3, local epochs 1, batch size 8, optimizer sgd, learning rate 0.01, learning rate schedule cosine"
    )
    assert f"Images: synthetic hospitals. Preset smoke: {training}." in notes
    assert "Not as by default, for all: training.rounds = 3." in notes
    assert "“HarmoFL”: band = dc, decay = 0.1, schedule = before-training, radius = 0.5." in notes
    assert sum(note.startswith(("“HarmoFL”", "“FedAvg”")) for note in notes) == 1


def test_what_a_variation_changes_of_a_method_stands_at_its_line_alone(results_of: ResultsOf) -> None:
    radii = "".join(
        f'[[variations]]\nname = "radius {radius}"\nonly = ["HarmoFL"]\nsettings.method.radius = {radius}\n'
        for radius in (0.05, 0.5)
    )
    scores = {f"harmofl/radius-{radius}/seed-0": {"A": 0.9} for radius in (0.05, 0.5)}
    notes = results_table(results_of(scores, START.replace("[0, 1]", "[0]") + ROWS + radii)).notes
    assert "“HarmoFL”: band = dc, decay = 0.1, schedule = before-training." in notes
    assert "“HarmoFL, radius 0.5”: method.radius = 0.5." in notes


def test_notes_say_once_what_a_variation_and_what_a_row_changes(results_of: ResultsOf) -> None:
    norms = "".join(f'[[variations]]\nname = "{name}"\nsettings.data.shift = {name}\n' for name in (0.5, 2.0))
    scores = {f"{row}/{name}/seed-0": {"A": 0.9} for row in ("fedavg", "harmofl") for name in ("0.5", "2.0")}
    row = "settings.training.batch_size = 4\n"
    notes = results_table(results_of(scores, START.replace("[0, 1]", "[0]") + ROWS + row + norms)).notes
    assert "Variation “2.0”: data.shift = 2.0." in notes
    assert "“HarmoFL”: training.batch_size = 4." in notes
    assert not any("“FedAvg, 2.0”" in note for note in notes)


def test_cells_that_are_missing_are_named(results_of: ResultsOf) -> None:
    results = results_of({path: SCORES[path] for path in list(SCORES)[:3]}, START + ROWS)
    table = results_table(results)
    assert table.notes[-1] == "Missing, 1 of 4 cells: HarmoFL, seed 1."
    assert [row.num_seeds for row in table.rows] == [2, 1]


def test_everything_is_written(results_of: ResultsOf, tmp_path: Path) -> None:
    results = results_of(SCORES, START + ROWS + PAPER)
    out = tmp_path / "out"
    write_results(results, out)
    state = json.loads((out / "results.json").read_text())
    assert (state["done"], state["missing"], state["metric_name"]) == (4, [], "accuracy")
    assert [cell["folder"] for cell in state["cells"]] == list(SCORES)
    (comparison,) = state["comparisons"]
    assert (comparison["label"], comparison["baseline"], comparison["num_pairs"]) == ("HarmoFL", "FedAvg", 4)
    assert comparison["difference"] == pytest.approx(1.0)  # 4, 0, 2 and -2 points
    assert comparison["verdict"] == "too few pairs to tell"
    markdown = (out / "table.md").read_text()
    assert "| HarmoFL | FedAvg | +1.00 | 2 of 4 pairs |" in markdown
    assert "As published, not our runs: A & B, table 9" in markdown
    assert "71.5000,2.2500" in (out / "table.csv").read_text()


def test_the_latex_file_holds_two_whole_tables_and_nothing_unescaped(results_of: ResultsOf, tmp_path: Path) -> None:
    write_results(results_of(SCORES, START + ROWS + PAPER), tmp_path / "out")
    text = (tmp_path / "out" / "table.tex").read_text()
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    assert r"Tissue \& co" in text
    for line in text.splitlines():
        if line.endswith(r"\\"):
            columns = 6 if "Method & A" in line or "(9.19)" in line or "(6.36)" in line else 3
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
        else:
            assert not re.search(r"(?<!\\)[&%#_$]", line)


def test_without_a_finished_cell_there_is_no_table(results_of: ResultsOf, tmp_path: Path) -> None:
    write_results(results_of({}), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]


def test_variations_are_compared_with_fedavg_under_the_same_one(results_of: ResultsOf) -> None:
    norms = "".join(
        f'[[variations]]\nname = "{norm} norm"\nsettings.model.norm = "{norm}"\n' for norm in ("batch", "group")
    )
    scores = {
        f"{row}/{norm}-norm/seed-{seed}": {"A": 0.9 + seed / 50, "B": 0.8}
        for row in ("fedavg", "harmofl")
        for norm in ("batch", "group")
        for seed in (0, 1)
    }
    results = results_of(scores, START + ROWS + norms)
    assert [(found.label, found.baseline) for found in results.comparisons()] == [
        ("FedAvg, group norm", "FedAvg, batch norm"),
        ("HarmoFL, batch norm", "FedAvg, batch norm"),
        ("HarmoFL, group norm", "FedAvg, group norm"),
    ]
    other = results_of(scores, START + 'baseline = "group norm"\n' + ROWS + norms)
    first, *rest = [(found.label, found.baseline) for found in other.comparisons()]
    assert first == ("FedAvg, batch norm", "FedAvg, group norm")
    assert rest == [(found.label, found.baseline) for found in results.comparisons()[1:]]
    assert [run.title for run in results.lines()[::2]] == [
        "FedAvg, batch norm",
        "FedAvg, group norm",
        "HarmoFL, batch norm",
        "HarmoFL, group norm",
    ]


def test_an_unseen_hospitals_column_is_the_score_of_the_model_that_never_saw_it(results_of: ResultsOf) -> None:
    text = START.replace("[0, 1]", "[0]") + 'hold_out = "each"\n' + ROWS
    scores = {
        f"{row}/without-hospital-{number}/seed-0": {"elsewhere": 0.99, "unseen": start + number / 10}
        for row, start in (("fedavg", 0.5), ("harmofl", 0.4))
        for number in range(5)
    }
    table = results_table(results_of(scores, text))
    assert [column.name for column in table.columns] == [*(f"hospital-{number}" for number in range(5)), "Average"]
    assert [cell.mean_text for cell in table.rows[0].cells] == ["50.00", "60.00", "70.00", "80.00", "90.00", "70.00"]
    assert table.caption.endswith("at the hospital that took no part")

    del scores["harmofl/without-hospital-4/seed-0"]
    assert results_table(results_of(scores, text)).rows[1].cells[-1].mean_text == "–"  # not over fewer sites


def test_the_table_warns_where_every_model_is_that_of_its_last_round(results_of: ResultsOf) -> None:
    one_round = "settings.training.rounds = 1\n"
    warning = "Every method selected its last round: training was too short"
    assert results_table(results_of(SCORES, START + one_round + ROWS)).warning.startswith(warning)
    assert not results_table(results_of(SCORES, START + ROWS)).warning  # the first of two
    held_out = START.replace("[0, 1]", "[0]") + 'hold_out = "each"\n' + one_round + ROWS
    sites = [f"without-hospital-{number}" for number in range(5)]
    scores = {f"{row}/{site}/seed-0": {"unseen": 0.5} for row in ("fedavg", "harmofl") for site in sites}
    results = results_of(scores, held_out)
    assert results_table(results).warning.startswith(warning)
    path = "fedavg/without-hospital-3/seed-0"
    other = {**results.runs[path].summary, "best_round": 7}  # any other
    results.runs[path] = replace(results.runs[path], summary=other)
    assert not results_table(results).warning


def test_variations_of_the_data_share_a_table_under_their_names(results_of: ResultsOf) -> None:
    shifts = "".join(f'[[variations]]\nname = "shift {shift}"\nsettings.data.shift = {shift}.0\n' for shift in (0, 1))
    scores = {f"fedavg/shift-{shift}/seed-0": {"A": 0.9, "B": 0.8} for shift in (0, 1)}
    table = results_table(results_of(scores, START + ROWS + shifts))
    assert [row.title for row in table.rows] == ["FedAvg, shift 0", "FedAvg, shift 1"]


def test_a_plan_can_show_validation_scores(results_of: ResultsOf) -> None:
    results = results_of(SCORES, 'scores = "validation"\n' + START + ROWS)
    for path, run in results.runs.items():
        records = [{"round": 1, "site": site, "phase": "val", "metric": 0.5} for site in run.scores]
        results.runs[path] = replace(run, records=records)
    table = results_table(results)
    assert table.caption == "Tissue & co: validation accuracy in percent, histology, of the selected round"
    assert {cell.text for row in table.rows for cell in row.cells[:2]} == {"50.00 (0.00)"}
    assert {comparison.difference for comparison in results.comparisons()} == {0}
