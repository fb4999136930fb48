"""A page of results from kept results written by hand."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from harmofl.data.facts import DataFacts
from harmofl.errors import UsageError
from harmofl.experiments.cells import Cell, read_experiment
from harmofl.experiments.json_lines import lock_json_lines
from harmofl.experiments.kept import to_line
from harmofl.experiments.kept_page import KeptPage
from harmofl.runs.finished import FinishedRun
from harmofl.tasks.data_facts import find_data_facts

ROOT = Path(__file__).parents[2]

ROWS = """
[[rows]]
name = "FedAvg"
method = "fedavg"

[[rows]]
name = "HarmoFL"
method = "harmofl"
"""
PLAN = 'title = "Tiny"\ntask = "histology"\npreset = "smoke"\nseeds = [0, 1, 2]\n' + ROWS
PAPER = '\n[paper]\nsource = "Somebody, 2022"\ncolumns = ["A", "Average"]\nscores.FedAvg = [61.25, 62.75]\n'
CURVE = """
title = "Radii"
task = "histology"
preset = "smoke"
shows = "curve"
axis = "method.radius"
rows = [{ name = "HarmoFL", method = "harmofl" }]
variations = [
  { name = "radius 0.05", settings.method.radius = 0.05 },
  { name = "radius 0.5", settings.method.radius = 0.5 },
]
"""

PAGE = """# Ours

By hand, before.

<!-- summary -->
<!-- end -->

## Two methods: tiny

By hand, between.

<!-- table: tiny; figures: convergence -->
old numbers
<!-- end -->

By hand, after.
"""

Scores = Mapping[str, float]
FEDAVG, HARMOFL = {"A": 0.8, "B": 0.6}, {"A": 0.85, "B": 0.63}


def keep(file: Path, name: str, cell: Cell, scores: Scores, **found: Any) -> None:
    """Keep a cell that came out with these scores in its only round."""
    settings = cell.settings.with_values("data", folder=None)
    facts = DataFacts.from_json({"synthetic": False} | found) if found else find_data_facts(settings)
    names = {"task": settings.task, "method": settings.method["name"], "seed": cell.seed, "title": "?"}
    test = dict(scores) | {"average": fmean(scores.values()), "std": 0.1}
    summary: dict[str, Any] = names | {"metric_name": "accuracy", "norm": "batch", "best_round": 1, "test": test}
    if cell.held_out:
        summary["unseen"] = {cell.held_out: {"metric": scores["A"], "note": "with its own statistics"}}
    trained = {"phase": "train", "loss": 0.5, "drift": 0.25, "bytes_up": 10, "bytes_down": 10}
    records = [{"round": 1, "site": site} | trained for site in scores]
    for phase in ("val", "test"):
        records += [{"round": 1, "site": site, "phase": phase, "metric": score} for site, score in scores.items()]
    with lock_json_lines(file) as locked:
        locked.append(to_line(name, cell, settings, FinishedRun(file, summary, records, facts=facts)))


class Place:
    """A page with its plans and kept results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "plans").mkdir()
        (folder / "kept").mkdir()
        self.plan("tiny", PLAN)
        self.path.write_text(PAGE)

    @property
    def path(self) -> Path:
        return self.folder / "results.md"

    @property
    def page(self) -> KeptPage:
        return KeptPage(self.path, self.folder / "plans", self.folder / "kept", "../nowhere/tiles")

    def kept(self, name: str) -> Path:
        return self.folder / "kept" / f"{name}.jsonl"

    def plan(self, name: str, text: str) -> None:
        (self.folder / "plans" / f"{name}.toml").write_text(text)

    def cells(self, name: str = "tiny", data: str | None = None) -> dict[str, Cell]:
        cells = read_experiment(self.folder / "plans" / f"{name}.toml", data).cells
        return {cell.path: cell for cell in cells}

    def done(self, *paths: str, name: str = "tiny", data: str | None = None, **found: Any) -> None:
        cells = self.cells(name, data)
        for path in paths:
            scores = HARMOFL if path.startswith("harmofl") else FEDAVG
            keep(self.kept(name), path, cells[path], scores, **found)

    def show(self, mark: str) -> str:
        self.path.write_text(f"## Here\n\n<!-- {mark} -->\n<!-- end -->\n")
        return self.page.text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


ALL = [f"{method}/seed-{seed}" for method in ("fedavg", "harmofl") for seed in range(3)]


def test_a_complete_experiment_has_its_table_tests_settings_and_command(place: Place) -> None:
    place.done(*ALL)
    text = place.show("table: tiny")
    assert "*Complete: 6 of 6 cells.*" in text
    assert "| FedAvg | 80.00 (0.00) | 60.00 (0.00) | 70.00 (14.14) | 0.00 |" in text
    assert "| HarmoFL | **85.00 (0.00)** | **63.00 (0.00)** | **74.00 (15.56)** | 0.00 |" in text
    # (5 + 3) / 2 points in six pairs, and no other signs of 64 are as extreme: p = 2/64
    assert "| HarmoFL | FedAvg | +4.00 | 6 of 6 pairs | p = 0.031 | p = 0.031 | more than noise |" in text
    assert "Settings: preset `smoke`; images: synthetic hospitals, 32 × 32; rounds × local epochs: 2 × 1;" in text
    assert "harmofl experiment plans/tiny.toml --keep kept --out runs/tiny\n" in text


def test_missing_cells_are_named_with_their_seeds(place: Place) -> None:
    assert "*Not started: all 6 cells are still missing.*" in place.show("table: tiny")
    place.done(*ALL[:4])
    text = place.show("table: tiny")
    assert "*2 of 6 cells are still missing: seeds 1 and 2 of HarmoFL.*" in text
    assert "Missing," not in text  # not twice


def test_seeds_that_no_line_has_are_named_once(place: Place) -> None:
    place.done("fedavg/seed-0", "harmofl/seed-0")
    assert "4 of 6 cells are still missing: seeds 1 and 2 of every line." in place.show("table: tiny")


def test_one_look_has_averages_the_difference_and_whether_it_is_noise(place: Place) -> None:
    place.done(*ALL[:5])
    row = "| [Two methods: tiny](#two-methods-tiny) | 70.00 | – | 74.00 |"
    assert f"{row} +4.00, ahead in 4 of 4: too few pairs to tell | 5 of 6 |" in place.page.text()
    place.done(ALL[5])
    assert f"{row} **+4.00, ahead in 6 of 6: more than noise** | 6 of 6 |" in place.page.text()


def test_one_look_at_a_curve_names_both_ends(place: Place) -> None:
    place.plan("radii", CURVE)
    keep(place.kept("radii"), "one", place.cells("radii")["harmofl/radius-0.05/seed-0"], FEDAVG)
    place.path.write_text(
        "## Here\n<!-- summary -->\n<!-- end -->\n<!-- table: radii; figures: curve -->\n<!-- end -->\n"
    )
    assert "| – | – | 70.00 (radius 0.05) | – | 1 of 2 |" in place.page.text()
    assert place.page.drawings() == []  # a point is no curve
    keep(place.kept("radii"), "two", place.cells("radii")["harmofl/radius-0.5/seed-0"], HARMOFL)
    assert "| – | – | 70.00 (radius 0.05) to 74.00 (radius 0.5) | – | 2 of 2 |" in place.page.text()
    assert [drawing.file for drawing in place.page.drawings()] == ["radii-curve.png"]


def test_an_overview_has_a_column_per_experiment_and_complete_lines_only(place: Place) -> None:
    varied = "".join(
        f'\n[[variations]]\nname = "{name}"\nsettings.training.learning_rate = {rate}\n'
        for name, rate in (("slow", 0.001), ("fast, or so", 0.1))
    )
    for name, title in (("first", "Fair, mice"), ("second", "Fair, men")):
        place.plan(name, PLAN.replace("Tiny", title).replace("[0, 1, 2]", "[0, 1]") + varied)
    slow, fast = (f"{{}}/{name}/seed-{{}}" for name in ("slow", "fast-or-so"))
    place.done(*(path.format("fedavg", seed) for path in (slow, fast) for seed in (0, 1)), name="first")
    place.done(slow.format("harmofl", 0), slow.format("harmofl", 1), fast.format("harmofl", 0), name="second")
    text = place.show("overview: first, second; variations: slow | fast, or so")
    assert "| Method | mice | men |" in text
    # The two plans are alike, so that each finds the other's cells.
    assert "| FedAvg | 70.00 → 70.00 | 70.00 → 70.00 |\n| HarmoFL | 74.00 → – | 74.00 → – |\n" in text
    assert "slow → fast, or so. Averages over sites and 2 seeds, or as many as a field says, in percent" in text


def test_an_overview_says_where_a_row_has_fewer_seeds_than_the_others(place: Place) -> None:
    place.plan("tiny", PLAN.replace('method = "harmofl"', 'method = "harmofl"\nseeds = [0]'))
    place.done(*(path for path in ALL if path.startswith("fedavg")), "harmofl/seed-0")
    text = place.show("overview: tiny")
    assert "| FedAvg | 70.00 |\n| HarmoFL | 74.00 (1 seed) |\n" in text


def test_prose_survives_and_writing_again_changes_nothing(place: Place) -> None:
    place.done(*ALL[:3])
    changed = place.page.write()
    assert {path.name for path in changed} == {"results.md", "tiny-convergence.png"}
    text = place.path.read_text()
    for prose in (
        "# Ours\n\nBy hand, before.\n\n",
        "## Two methods: tiny\n\nBy hand, between.\n\n",
        "\n\nBy hand, after.\n",
    ):
        assert prose in text
    assert "old numbers" not in text
    assert place.page.stale() == []
    assert place.page.write() == []


def test_a_stale_page_is_found(place: Place) -> None:
    place.done(*ALL[:2])
    place.page.write()
    place.path.write_text(place.path.read_text().replace("70.00", "71.00"))
    assert place.page.stale() == [f"{place.path}: its tables"]
    place.page.write()
    place.done(ALL[2])
    assert place.page.stale() == [
        f"{place.path}: its tables",
        str(place.folder / "figures" / "results" / "tiny-convergence.png"),
    ]
    place.page.write()
    (place.folder / "figures" / "results" / "tiny-convergence.png").rename(
        place.folder / "figures" / "results" / "gone.png"
    )
    assert [Path(what.partition(":")[0]).name for what in place.page.stale()] == ["tiny-convergence.png", "gone.png"]
    place.page.write()
    assert [path.name for path in (place.folder / "figures" / "results").iterdir()] == ["tiny-convergence.png"]


def test_cells_that_experiments_share_are_found(place: Place) -> None:
    place.done(*ALL)
    place.plan(
        "ablation",
        PLAN.replace('"HarmoFL"', '"+ both"')
        + '[[rows]]\nname = "off"\nmethod = "harmofl"\nsettings.method.radius = 0.0\n',
    )
    text = place.show("table: ablation")
    assert "*3 of 9 cells are still missing: all of off.*" in text
    assert "| + both | **85.00 (0.00)**" in text


def test_images_need_not_be_at_hand_but_must_be_the_same(place: Place) -> None:
    place.plan("real-tiles", PLAN.replace("histology", "segmentation"))
    found: dict[str, Any] = {"sites": ["A", "B"], "channels": 3, "classes": ["0", "255"]}
    place.done("fedavg/seed-0", name="real-tiles", data="/other/tiles", fingerprints=["one"], **found)
    text = place.show("table: real-tiles")
    assert "| FedAvg | 80.00 | 60.00 | 70.00 (14.14) |" in text
    assert "images: tiles, " in text
    assert "harmofl experiment plans/real-tiles.toml --data ../nowhere/tiles --keep kept" in text
    place.done("harmofl/seed-0", name="real-tiles", data="/other/tiles", fingerprints=["two"], **found)
    with pytest.raises(UsageError, match="real-tiles: kept results of different images"):
        place.page.text()


def test_results_that_a_later_run_has_outdated_are_not_shown(place: Place) -> None:
    place.plan("real-tiles", PLAN.replace("histology", "segmentation"))
    found: dict[str, Any] = {"sites": ["A", "B"], "channels": 3, "classes": ["0", "255"]}
    place.done(*ALL, name="real-tiles", data="/other/tiles", fingerprints=["old"], **found)
    for path, cell in place.cells("real-tiles", "/other/tiles").items():
        keep(place.kept("real-tiles"), f"{path}-5a1bc", cell, HARMOFL, fingerprints=["new"], **found)
    with pytest.raises(UsageError, match=r"FedAvg, seed 0: kept results of different images: .*seed-0, .*seed-0-5a1bc"):
        place.show("table: real-tiles")
    lines = place.kept("real-tiles").read_text().splitlines(keepends=True)
    place.kept("real-tiles").write_text("".join(lines[len(ALL) :]))
    assert "| FedAvg | **85.00 (0.00)**" in place.show("table: real-tiles")


def test_the_papers_numbers_stand_apart_also_for_tiles_of_its_images(place: Place) -> None:
    place.plan("tiny", PLAN + PAPER)
    place.plan("tiny-tiles", PLAN.replace("histology", "segmentation"))
    for name in ("tiny", "tiny-tiles"):
        text = place.show(f"table: {name}")
        assert "**As published, not our runs: Somebody, 2022, in percent**" in text
        assert "| FedAvg | 61.25 | 62.75 |" in text
        assert "not our numbers" in text


def test_a_hospital_that_took_no_part_is_drawn_as_such(place: Place) -> None:
    place.plan("unseen", PLAN.replace("[0, 1, 2]", "[0]") + "\n")
    plan = 'hold_out = "each"\n' + (place.folder / "plans" / "unseen.toml").read_text()
    place.plan("unseen", plan)
    for path, cell in place.cells("unseen").items():
        keep(place.kept("unseen"), path, cell, FEDAVG)
    text = place.show("table: unseen; figures: unseen")
    assert "at the hospital that took no part" in text
    assert "*Complete: 10 of 10 cells.*" in text
    place.page.write()
    assert (place.folder / "figures" / "results" / "unseen-unseen.png").stat().st_size < 100_000


def test_flatness_is_averaged_over_the_seeds_that_were_measured(place: Place) -> None:
    for seed, sharpness in enumerate((0.1, 0.3)):
        folder = place.folder / "kept" / "tiny" / f"landscape-seed-{seed}"
        folder.mkdir(parents=True)
        lines = [
            f"FedAvg,A,{sharpness},0.5,12.0",
            f"FedAvg,all sites,{2 * sharpness},0.7,13.0",
            "HarmoFL,A,0.05,0.2,1.0",
        ]
        (folder / "landscape.csv").write_text("\n".join(["run,site,sharpness,ε,Γ", *lines]) + "\n")
    text = place.show("flatness: tiny")
    assert "How flat the selected models are" in text
    assert "| Method | A | all sites | ε | Γ of a further epoch |" in text
    assert "| FedAvg | 0.200 (0.141) | 0.400 (0.283) | 0.700 (0.000) | 13.0 (0.0) |" in text
    assert "| HarmoFL | 0.050 (0.000) | – | – | – |" in text
    assert "Mean (sample std over seeds); 2 seeds." in text
    with pytest.raises(UsageError, match=r"flatness: other -->: there is no landscape-seed-…/landscape.csv in "):
        place.show("flatness: other")


def test_scores_stand_beside_the_epsilon_that_their_runs_have_spent(place: Place) -> None:
    assert "*Not started: all 6 cells are still missing.*" in place.show("epsilon: tiny")
    place.done(*ALL)
    text = place.show("epsilon: tiny")
    assert "*Complete: 6 of 6 cells.*" in text
    assert "| FedAvg | – | – | 70.00 | – |" in text
    lines = [json.loads(line) for line in place.kept("tiny").read_text().splitlines()]
    for line in lines:
        spent = {"site": {"epsilon": 3.0 + line["seed"]}, "image": {"epsilon": {"A": 1.0, "B": 2.5}}}
        line["summary"] |= {"privacy": {"delta": 1e-5} | spent} if line["label"] == "HarmoFL" else {}
    place.kept("tiny").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = place.show("epsilon: tiny")
    assert "ε of a site at δ = 1e-05 | ε of an image at δ = 1e-05 | Average accuracy | lost |" in text
    assert "| HarmoFL | 5 | 2.5 | 74.00 | -4.00 |" in text


def test_a_table_whose_reference_has_not_been_run_yet_compares_nothing(place: Place) -> None:
    place.plan("tiny", 'reference = "HarmoFL"\n' + PLAN)
    place.done(*ALL[:3])
    text = place.show("table: tiny")
    assert "| FedAvg |" in text
    assert "Is it more than noise?" not in text


def test_an_unknown_experiment_is_named(place: Place) -> None:
    with pytest.raises(UsageError, match=r"unknown experiment 'tinny'.*tiny"):
        place.show("table: tinny")


# ---- the page of this repository ----


PAGES = {
    "results": [
        *("fair-nuclei-tiles", "fair-histology", "fair-nuclei", "fair-prostate"),
        *("as-published-nuclei-tiles", "as-published-histology", "as-published-nuclei", "as-published-prostate"),
        *("fair-local-epochs-histology", "fair-local-epochs-nuclei-tiles", "unseen-hospital", "volumes-prostate"),
    ],
    "results-settings": [
        *("ablation-nuclei-tiles", "ablation-histology", "ablation-nuclei", "ablation-prostate"),
        *("band-nuclei-tiles", "band-histology", "norm-nuclei-tiles", "norm-histology"),
        *(
            "figure-radius",
            "one-pass",
            "one-pass-nuclei-tiles",
            "precision",
            "figure-local-epochs",
            "schedule",
            "decay",
        ),
        "table-nuclei-tiles",
    ],
}


@pytest.mark.parametrize("name", PAGES)
def test_our_pages_of_results_are_up_to_date(name: str) -> None:
    page = KeptPage(ROOT / f"docs/{name}.md", ROOT / "experiments", ROOT / "results", "../shared/data/nuclei-tiles")
    assert page.stale() == [], "run make results"


@pytest.mark.parametrize("name", PAGES)
def test_our_pages_of_results_show_every_experiment_in_its_order(name: str) -> None:
    text = (ROOT / f"docs/{name}.md").read_text()
    names = [line.split()[2].rstrip(";") for line in text.splitlines() if line.startswith("<!-- table:")]
    assert names == PAGES[name]


SHOWN_FIRST = {
    "synthetic histology": "fair-histology",
    "synthetic prostate MRI, slices": "fair-prostate",
    "synthetic nuclei": "fair-nuclei",
    "real nuclei tiles": "fair-nuclei-tiles",
}
"""The lines of the first table of our page, which is written by hand, and the experiments that they are from."""


def test_the_numbers_that_our_page_begins_with_are_those_of_its_tables() -> None:
    text = (ROOT / "docs/results.md").read_text()

    def cells(line: str) -> list[str]:
        return [cell.strip(" *") for cell in line.strip().strip("|").split("|")]

    first = text[text.index("| | FedAvg | FreshBN |") :].split("\n\n")[0].splitlines()
    shown = {cells(line)[0]: cells(line)[1:] for line in first[2:]}
    for words, experiment in SHOWN_FIRST.items():
        block = re.split(rf"<!-- table: {experiment}\b(?!-)", text)[1].split("<!-- end -->")[0]
        table = block[block.index("| Method |") :].split("\n\n")[0]
        rows = {cells(line)[0]: cells(line)[1:-1] for line in table.splitlines()}
        chosen = [rows[f"{name}, cosine"] for name in ("FedAvg", "FreshBN", "HarmoFL")]
        averages = [float(row[-1].split()[0]) for row in chosen]
        worst = [min(float(cell.split()[0]) for cell in row[:-1]) for row in chosen[:2]]
        fedavg, fresh, both, harmofl = shown[words]
        written = [float(number) for number in (fedavg, fresh, harmofl, *both.split(" → "))]
        assert written == pytest.approx([*averages, *worst], abs=0.0501), words  # tables have one digit more
