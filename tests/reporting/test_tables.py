import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harmofl.data.facts import DataFacts
from harmofl.errors import UsageError
from harmofl.reporting.table_formats import latex_escape, to_csv, to_latex, to_markdown, to_rich
from harmofl.reporting.tables import methods_of, score_table
from harmofl.reporting.words import rank_methods
from harmofl.runs.finished import FinishedRun

MakeRun = Callable[..., FinishedRun]


@pytest.fixture
def four_runs(make_run: MakeRun) -> list[FinishedRun]:
    """Two methods and two seeds, with these means and sample stds, worked out by hand.

    FedAvg  A 90, 92 -> 91 (√2)   B 80, 84 -> 82 (2√2)   averages 85, 88 -> 86.5 (3/√2), over sites 9/√2
    HarmoFL A 94, 94 -> 94 (0)    B 80, 82 -> 81 (√2)    averages 87, 88 -> 87.5 (1/√2), over sites 13/√2
    """
    return [
        make_run("fedavg", {"A": 0.90, "B": 0.80}, seed=0),
        make_run("fedavg", {"A": 0.92, "B": 0.84}, seed=1),
        make_run("harmofl", {"A": 0.94, "B": 0.80}, seed=0),
        make_run("harmofl", {"A": 0.94, "B": 0.82}, seed=1),
    ]


def test_table_of_several_seeds_agrees_with_numbers_worked_out_by_hand(four_runs: list[FinishedRun]) -> None:
    table = score_table(four_runs)
    assert [column.name for column in table.columns] == ["A", "B", "Average", "Average's std over seeds"]
    fedavg, harmofl = table.rows
    assert [cell.text for cell in fedavg.cells] == ["91.00 (1.41)", "82.00 (2.83)", "86.50 (6.36)", "2.12"]
    assert [cell.text for cell in harmofl.cells] == ["94.00 (0.00)", "81.00 (1.41)", "87.50 (9.19)", "0.71"]


def test_best_of_each_column_is_marked_but_not_a_spread(four_runs: list[FinishedRun]) -> None:
    fedavg, harmofl = score_table(four_runs).rows
    assert [cell.best for cell in fedavg.cells] == [False, True, False, False]
    assert [cell.best for cell in harmofl.cells] == [True, False, True, False]


def test_one_seed_shows_no_std_over_seeds(two_runs: list[FinishedRun]) -> None:
    table = score_table(two_runs)
    assert [cell.text for cell in table.rows[0].cells] == ["90.00", "80.00", "70.00", "80.00 (10.00)"]
    assert "seeds" not in to_markdown(table)


def test_scores_that_read_the_same_are_equally_best(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", {"A": 0.900001, "B": 0.5}),
        make_run("harmofl", {"A": 0.900002, "B": 0.6}),
    ]
    assert [row.cells[0].best for row in score_table(runs).rows] == [True, True]


def test_references_are_shown_but_do_not_compete(two_runs: list[FinishedRun], make_run: MakeRun) -> None:
    table = score_table([*two_runs, make_run("centralized", {"A": 0.99, "B": 0.99, "C": 0.99})])
    assert not any(cell.best for cell in table.rows[2].cells)
    assert table.rows[1].cells[0].best
    assert any("not in competition: Centralized" in note for note in table.notes)


def test_single_method_marks_nothing(two_runs: list[FinishedRun]) -> None:
    table = score_table(two_runs[:1])
    assert not any(cell.best for cell in table.rows[0].cells)


def test_site_without_a_score_is_shown_as_missing(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", {"A": 0.9, "B": 0.8}),
        make_run("harmofl", {"A": 0.9, "B": 0.7, "C": 0.6}),
    ]
    table = score_table(runs)
    assert table.rows[0].cells[2].text == "–"
    assert table.rows[1].cells[2].best


def test_an_average_without_one_of_the_sites_does_not_compete(make_run: MakeRun) -> None:
    easy = {"A": 0.9, "B": 0.7}
    runs = [
        make_run("fedavg", easy | {"C": 0.5}),
        make_run("harmofl", easy, seed=0),
        make_run("harmofl", easy | {"C": 0.5}, seed=1),
    ]
    table = score_table(runs)
    assert [row.cells[3].text for row in table.rows] == ["70.00 (20.00)", "–"]
    assert table.rows[0].cells[3].best
    assert "No average where a site has no score: HarmoFL, seed 0 (C)." in table.notes
    assert [method.label for method in rank_methods(runs)] == ["FedAvg"]


def test_score_of_null_or_nan_in_one_seed_makes_the_mean_missing(make_run: MakeRun) -> None:
    broken = {"A": None, "B": 0.8, "average": float("nan"), "std": None}
    runs = [
        make_run("fedavg", {"A": 0.9, "B": 0.8}, seed=0),
        make_run("fedavg", {"A": 0.9, "B": 0.8}, seed=1, test=broken),
    ]
    cells = score_table(runs).rows[0].cells
    assert [cell.mean_text for cell in cells] == ["–", "80.00", "–", "–"]


def test_markdown_marks_the_best_and_labels_both_spreads(four_runs: list[FinishedRun]) -> None:
    text = to_markdown(score_table(four_runs))
    assert "| Method | A | B | Average (std over sites) | Average's std over seeds |" in text
    assert "| HarmoFL | **94.00 (0.00)** | 81.00 (1.41) | **87.50 (9.19)** | 0.71 |" in text
    assert "Site columns: mean (sample std over seeds); 2 seeds." in text


def test_a_line_with_fewer_seeds_than_most_is_named(four_runs: list[FinishedRun], make_run: MakeRun) -> None:
    table = score_table([*four_runs, make_run("fedbn", {"A": 0.9, "B": 0.8}, seed=0)])
    assert "Site columns: mean (sample std over seeds); 2 seeds; 1 of FedBN." in table.notes


def test_markdown_keeps_a_bar_in_a_name_inside_its_cell(make_run: MakeRun) -> None:
    text = to_markdown(score_table([make_run("fedavg", {"A|1": 0.9, "B": 0.8})]))
    assert r"| A\|1 |" in text


def test_csv_holds_bare_numbers_with_spreads_in_their_own_columns(four_runs: list[FinishedRun]) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(score_table(four_runs)))))
    assert rows[0]["method"] == "FedAvg"
    assert rows[0]["seeds"] == "2"
    assert float(rows[0]["B: std over seeds"]) == pytest.approx(8**0.5, abs=1e-4)
    assert float(rows[1]["Average: std over sites"]) == pytest.approx(13 / 2**0.5, abs=1e-4)
    assert float(rows[1]["Average's std over seeds"]) == pytest.approx(0.5**0.5, abs=1e-4)


def test_terminal_table_shows_names_in_brackets_as_they_are(make_run: MakeRun) -> None:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(to_rich(score_table([make_run("fedavg", {"[red]A": 0.9, "B": 0.8})])))
    shown = console.export_text()
    assert "[red]A" in shown
    assert "90.00" in shown


def test_a_narrow_terminal_shows_scores_without_their_spreads(four_runs: list[FinishedRun]) -> None:
    table = score_table(four_runs)
    shown = {}
    for width in (120, 60):
        console = Console(file=io.StringIO(), width=width, record=True)
        console.print(to_rich(table, width))
        shown[width] = console.export_text()
    assert "(2.83)" in shown[120]
    assert "Spreads are left out" not in shown[120]
    assert "(2.83)" not in shown[60]
    assert "Spreads are left out" in shown[60]
    assert all(row.cells[0].mean_text in shown[60] for row in table.rows)


def test_rows_keep_the_order_given_and_seeds_join_their_method(four_runs: list[FinishedRun]) -> None:
    first, second, third, fourth = four_runs
    labels = [method.label for method in methods_of([third, first, fourth, second])]
    assert labels == ["HarmoFL", "FedAvg"]


def test_different_norms_make_different_rows(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", {"A": 0.9, "B": 0.8}, seed=0, norm="batch"),
        make_run("fedavg", {"A": 0.9, "B": 0.8}, seed=1, norm="group"),
    ]
    assert [row.title for row in score_table(runs).rows] == ["FedAvg (batch norm)", "FedAvg (group norm)"]


def test_the_same_seed_twice_is_refused(two_runs: list[FinishedRun]) -> None:
    with pytest.raises(UsageError, match="FedAvg ran twice with seed 0"):
        score_table([two_runs[0], FinishedRun(Path("copy"), two_runs[0].summary, [])])


def test_runs_of_different_tasks_are_refused(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", {"A": 0.9, "B": 0.8}),
        make_run("harmofl", {"A": 0.9, "B": 0.8}, task="nuclei"),
    ]
    with pytest.raises(UsageError, match=r"different task.*histology, nuclei"):
        score_table(runs)


def test_no_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="no runs given"):
        score_table([])


def test_a_setting_that_a_file_does_not_name_has_its_default(two_runs: list[FinishedRun]) -> None:
    named = replace(two_runs[1], config="[data]\nseed = 0\n")
    assert len(score_table([replace(two_runs[0], config="[data]\n"), named]).rows) == 2


def test_runs_on_different_images_or_masks_do_not_share_a_table(two_runs: list[FinishedRun]) -> None:
    first, second = two_runs
    facts = DataFacts(False, ("A", "B"), 3, ("no", "yes"), ("one",), ("masks",))
    assert len(score_table([replace(first, facts=facts), replace(second, facts=facts)]).rows) == 2
    for change in ({"fingerprints": ("two",)}, {"annotations": ("others",)}):
        others = replace(facts, **change)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"runs with different (images|masks).* do not belong in one table"):
            score_table([replace(first, facts=facts), replace(second, facts=others)])


def test_runs_on_different_data_do_not_share_a_table(two_runs: list[FinishedRun]) -> None:
    first, second = (
        replace(run, config=f"[data]\nshift = {shift}\n") for run, shift in zip(two_runs, (0.0, 1.0), strict=True)
    )
    with pytest.raises(UsageError, match=r"different data.shift do not belong in one table: 0.0, 1.0"):
        score_table([first, second])


def test_latex_marks_the_best_and_puts_the_notes_into_the_caption(four_runs: list[FinishedRun]) -> None:
    lines = to_latex(score_table(four_runs)).splitlines()
    assert r"HarmoFL & \textbf{94.00 (0.00)} & 81.00 (1.41) & \textbf{87.50 (9.19)} & 0.71 \\" in lines
    assert r"\begin{tabular}{lrrrr}" in lines
    assert lines[2].startswith(r"\caption{Test accuracy in percent, histology. Site columns: mean (sample std")
    assert lines[2].endswith("Normalization layers: batch.}")
    for name in ("table", "tabular"):
        assert rf"\begin{{{name}}}" in "".join(lines)
        assert rf"\end{{{name}}}" in lines


def test_latex_escapes_every_character_that_means_something_there() -> None:
    assert latex_escape(r"50% & a_b #1 $x {y} ~^\ [z] – −2") == (
        r"50\% \& a\_b \#1 \$x \{y\} \textasciitilde{}\textasciicircum{}\textbackslash{} {[}z] -- $-$2"
    )
