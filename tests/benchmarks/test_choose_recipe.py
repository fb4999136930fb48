"""The rule of docs/protocol.md, on numbers worked out by hand."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import choose_recipe
from choose_recipe import EFFORT, TASKS, Setting, choose, lost_on_phantoms, read_scores, screen, weigh
from harmofl.experiments.plan import read_plan
from harmofl.methods.adaptations import SiteStatistics
from harmofl.methods.catalogue import fedavg, freshbn
from harmofl.reporting.tables import MethodScores
from harmofl.runs.finished import FinishedRun

ROOT = Path(__file__).parents[2]
SITES = ("A", "B", "C")


def method(gains: tuple[float, float, float]) -> MethodScores:
    """Three seeds that score 80 % and these points more at three sites."""
    names = {"task": "histology", "method": "fedavg", "metric_name": "accuracy"}
    test = {site: 0.8 + gain / 100 for site, gain in zip(SITES, gains, strict=True)} | {"average": 0.8}
    runs = [FinishedRun(Path("run"), names | {"seed": seed, "test": test}, []) for seed in range(3)]
    return MethodScores("?", tuple(runs))


def scores(**gains: tuple[float, float, float]) -> dict[str, dict[Setting, MethodScores]]:
    """Candidates with the same gains in every setting."""
    settings = [(task, schedule) for task in TASKS for schedule in ("cosine", "constant rate")]
    each = {"FedAvg": (0.0, 0.0, 0.0)} | gains
    return {name: {setting: method(own) for setting in settings} for name, own in each.items()}


def test_the_tiles_count_as_much_as_all_phantoms() -> None:
    gains = {(task, "cosine"): 3.0 if task == "nuclei-tiles" else 1.0 for task in TASKS}
    assert weigh(gains) == pytest.approx(2.0)


def test_the_highest_gain_wins_unless_a_site_pays_for_it() -> None:
    chosen, places = choose(scores(FedRDN=(1.0, 1.0, 1.0), SCAFFOLD=(9.0, 9.0, -1.5)))
    assert chosen == "FedRDN"
    assert [(each.name, round(each.gain, 2), each.is_eligible) for each in places] == [
        ("SCAFFOLD", 5.5, False),
        ("FedRDN", 1.0, True),
        ("FedAvg", 0.0, True),
    ]
    assert places[0].worst_at == "nuclei-tiles, C"


def test_of_candidates_that_tie_the_simpler_one_is_chosen() -> None:
    two = "FedRDN with SCAFFOLD"
    assert choose(scores(**{"FedRDN": (1.0, 1.0, 1.0), two: (1.2, 1.2, 1.2)}))[0] == "FedRDN"  # by 0.2 points
    assert choose(scores(**{"FedRDN": (1.0, 1.0, 1.0), two: (2.0, 2.0, 2.0)}))[0] == two
    assert choose(scores(perturbation=(1.1, 1.1, 1.1), FedRDN=(1.0, 1.0, 1.0)))[0] == "FedRDN"  # one pass
    assert choose(scores(FedRDN=(0.2, 0.2, 0.2)))[0] == "FedAvg"


def test_a_gap_that_could_be_noise_is_a_tie() -> None:
    found = scores(FedRDN=(1.0, 1.0, 1.0), SCAFFOLD=(1.0, 1.0, 1.0))
    two = "FedRDN with SCAFFOLD"
    found[two] = {setting: method((9.0, 0.9, 0.9)) for setting in found["FedAvg"]}
    found[two] |= {("nuclei", schedule): method((-0.9, 0.9, 0.9)) for schedule in ("cosine", "constant rate")}
    assert choose(found)[0] in ("FedRDN", "SCAFFOLD")  # ahead by far, but in a minority of pairs


def test_every_candidate_of_the_plans_has_its_effort_and_stands_in_the_protocol() -> None:
    rows = [row.name for row in read_plan(ROOT / "experiments" / "recipe-histology.toml").rows]
    assert rows == list(EFFORT)
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([^|]+) \| [^|]+ \| (\d) \| (\d) \|$", text, flags=re.MULTILINE)
    assert {name: (int(pieces), int(passes)) for name, pieces, passes in listed} == dict(EFFORT)


def test_the_baseline_and_the_two_best_of_the_screening_go_on_and_one_that_ties_with_the_second() -> None:
    gains = {
        "FedRDN": 3.0,
        "SCAFFOLD": 1.0,
        "FedAvgM": 0.95,
        "Momentum-SAM": 0.8,
        "perturbation": -0.4,
    }
    screened, places = screen(scores(**{name: (gain,) * 3 for name, gain in gains.items()}))
    assert screened == ["FedAvg", "FedRDN", "SCAFFOLD", "FedAvgM"]
    assert [each.name for each in places][-1] == "perturbation"


def test_a_candidate_that_loses_on_the_phantoms_needs_no_run_on_the_tiles() -> None:
    found = scores(FedRDN=(1.0, 1.0, 1.0), SCAFFOLD=(0.5, 0.5, 0.5), SiteAlign=(-0.6, -0.6, -0.6))
    found["SiteAlign"] = {setting: own for setting, own in found["SiteAlign"].items() if setting[0] != "nuclei-tiles"}
    assert lost_on_phantoms(found) == ["SiteAlign"]
    assert [each.name for each in screen(found)[1]] == ["FedRDN", "SCAFFOLD", "FedAvg"]


def test_the_screening_looks_at_one_seed_and_the_cosine_only() -> None:
    names = ("FedRDN", "SCAFFOLD")
    found = scores(**dict.fromkeys(names, (1.0, 1.0, 1.0)), FedAvgM=(0.5, 0.5, 0.5))
    found["FedAvgM"] |= {(task, "constant rate"): method((9.0, 9.0, 9.0)) for task in TASKS}
    assert "FedAvgM" not in screen(found)[0]


def test_nothing_is_chosen_before_all_cells_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(read_scores(tmp_path)[1]) == 10 * 4 * 2 * 3
    monkeypatch.setattr("sys.argv", ["choose_recipe.py", str(tmp_path)])
    assert choose_recipe.main() == 1
    assert "30 runs are missing for the screening on phantoms" in capsys.readouterr().err


def test_the_protocol_ends_with_what_the_kept_records_choose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["choose_recipe.py", str(ROOT / "results")])
    assert choose_recipe.main() == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    protocol = (ROOT / "docs/protocol.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line not in protocol] == []
    assert any(line.startswith("| FedAvg ") and "**chosen**" in line for line in lines)


def test_the_catalogue_has_the_chosen_candidate_unchanged() -> None:
    in_words = {field: getattr(freshbn, field) for field in ("name", "paper", "idea", "limit", "requires")}
    assert freshbn == replace(fedavg, adapt=SiteStatistics(), **in_words)
