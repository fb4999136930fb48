import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harmofl.data.facts import DataFacts
from harmofl.errors import UsageError
from harmofl.experiments.cells import Cell, read_experiment
from harmofl.experiments.json_lines import read_json_lines
from harmofl.experiments.kept import Kept, agree, is_kept, read_kept
from harmofl.runs.finished import read_settings
from harmofl.settings import Settings, resolve
from harmofl.tasks.data_facts import find_data_facts

WritePlan = Callable[..., Path]
FOUND = DataFacts(False, ("A", "B"), 3, ("normal", "tumor"), ("one",), ("masks",))


def finished(folder: Path, facts: DataFacts | None = None, **settings: object) -> Path:
    """A run's folder with all that is kept of it."""
    folder.mkdir(parents=True)
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    resolved, _ = resolve("histology", "fedavg", "smoke", overrides=changes | {"seed": 0})
    (folder / "config.toml").write_text(resolved.to_toml())
    (facts or find_data_facts(resolved)).write(folder / "data.json")
    records = [
        {"round": 1, "site": "A", "phase": "train", "loss": 0.123456789, "drift": 0.5, "bytes_up": 10, "bytes_down": 9},
        {"round": 1, "site": "A", "phase": "val", "metric": 0.75, "loss": 0.2},
        {"round": 1, "site": "A", "phase": "test", "metric": 0.5, "loss": 0.2},
        {"round": 1, "site": "A", "phase": "test", "metric": 0.5, "selected": True},
        {"round": 1, "site": "B", "phase": "train", "error": "timed out"},
        {"round": 1, "site": "server", "phase": "train", "seconds": 1.0},
    ]
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    summary = {"task": "histology", "method": "fedavg", "seed": 0, "metric_name": "accuracy"}
    (folder / "summary.json").write_text(json.dumps(summary | {"test": {"A": 0.5, "average": 0.5}}))
    return folder


def test_a_kept_result_holds_no_path_and_can_be_read_as_a_run(write_plan: WritePlan, tmp_path: Path) -> None:
    secret = tmp_path / "secret-place"
    experiment = read_experiment(write_plan(), data=secret)
    run = finished(tmp_path / "run", FOUND, data__folder=str(secret), data__cache=str(secret))
    cell = Kept(tmp_path / "kept").keep(experiment, experiment.cells[0], run)
    file = tmp_path / "kept" / "tiny.jsonl"
    assert cell.place == file / "fedavg" / "seed-0"
    assert "secret" not in file.read_text()
    assert str(tmp_path) not in file.read_text()
    assert is_kept(cell.place)
    again = read_kept(cell.place)
    assert again.scores == {"A": 50.0}
    assert [record["phase"] for record in again.records] == ["train", "val", "test"]
    assert again.facts == FOUND


def test_a_line_tells_what_was_chosen_from_what_was_found_in_the_images(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan(), data=tmp_path)
    Kept(tmp_path / "kept").keep(experiment, experiment.cells[0], of_images(tmp_path, "one", annotations="masks"))
    [line] = read_json_lines(tmp_path / "kept" / "tiny.jsonl")
    assert list(line) == ["cell", "label", "seed", "settings", "data", "summary", "rounds"]
    assert (line["cell"], line["label"], line["seed"]) == ("fedavg/seed-0", "FedAvg", 0)
    found = {"synthetic": False, "sites": ["A", "B"], "channels": 3, "classes": ["normal", "tumor"]}
    assert line["data"] == found | {"fingerprints": ["one"], "annotations": ["masks"]}
    assert not line["data"].keys() & line["settings"]["data"].keys()
    assert "workers" not in line["settings"]["federation"]  # changes no result


def test_the_facts_about_synthetic_images_are_kept_too(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan())
    cell = Kept(tmp_path / "kept").keep(experiment, experiment.cells[0], finished(tmp_path / "run"))
    [line] = read_json_lines(tmp_path / "kept" / "tiny.jsonl")
    sites = [f"hospital-{number}" for number in range(5)]
    assert line["data"] == {"synthetic": True, "sites": sites, "channels": 3, "classes": ["normal", "tumor"]}
    assert cell.settings.data.sites is None  # as nobody has chosen any


def test_a_kept_result_counts_for_every_experiment_with_a_cell_of_its_configuration(
    write_plan: WritePlan, tmp_path: Path
) -> None:
    experiment = read_experiment(write_plan())
    place = Kept(tmp_path / "kept").keep(experiment, experiment.cells[0], finished(tmp_path / "run")).place
    other = read_experiment(write_plan(name="other"))
    kept = Kept(tmp_path / "kept")
    found = [kept.find(other, cell) for cell in other.cells]
    assert [cell and cell.place for cell in found] == [place, None, None, None]
    assert kept.find(other, read_experiment(write_plan(), preset="small").cells[0]) is None
    assert kept.find(other, read_experiment(write_plan(), data=tmp_path).cells[0]) is None  # not of a phantom


def test_nothing_that_is_kept_is_replaced(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan())
    longer = read_experiment(write_plan(), preset="small")
    kept, file = Kept(tmp_path / "kept"), tmp_path / "kept" / "tiny.jsonl"
    first = kept.keep(experiment, experiment.cells[0], finished(tmp_path / "run"))
    before = file.read_text()
    rounds = longer.cells[0].settings.training.rounds
    changes: dict[str, Any] = {"training__rounds": rounds, "preset": "small"}
    second = kept.keep(longer, longer.cells[0], finished(tmp_path / "longer", **changes))
    assert file.read_text().startswith(before)
    assert second.place.parent == first.place.parent
    assert second.place.name.startswith("seed-0-")
    assert second.settings.training.rounds == rounds
    both = file.read_text()
    assert kept.keep(experiment, experiment.cells[0], tmp_path / "run") == first
    assert kept.keep(longer, longer.cells[0], tmp_path / "longer") == second
    assert file.read_text() == both


def test_what_changes_no_result_is_no_reason_to_keep_it_again(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan())
    [cell, *_], kept = experiment.cells, Kept(tmp_path / "kept")
    first = kept.keep(experiment, cell, finished(tmp_path / "run"))
    assert kept.keep(experiment, cell, finished(tmp_path / "again", federation__workers=3)) == first
    second = kept.keep(experiment, cell, finished(tmp_path / "longer", training__rounds=9))
    again = finished(tmp_path / "longer again", training__rounds=9, federation__workers=3)
    assert kept.keep(experiment, cell, again) == second
    assert len(read_json_lines(tmp_path / "kept" / "tiny.jsonl")) == 2


def test_a_kill_while_a_cell_is_kept_loses_none_of_the_others(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan())
    [cell, *_], file = experiment.cells, tmp_path / "kept" / "tiny.jsonl"
    Kept(tmp_path / "kept").keep(experiment, cell, finished(tmp_path / "run"))
    whole = file.read_text()
    file.write_text(whole + whole[:100])
    kept = Kept(tmp_path / "kept")
    assert kept.find(experiment, cell)
    kept.keep(experiment, cell, finished(tmp_path / "longer", training__rounds=9))
    assert [line["settings"]["training"]["rounds"] for line in read_json_lines(file)] == [2, 9]


def of_images(tmp_path: Path, name: str, annotations: str) -> Path:
    facts = replace(FOUND, fingerprints=(name,), annotations=(annotations,))
    return finished(tmp_path / f"{name} {annotations}", facts, data__folder=str(tmp_path))


def test_a_plan_that_leaves_its_images_open_has_one_result(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan(), data=tmp_path)
    [cell, *_], file = experiment.cells, tmp_path / "kept" / "tiny.jsonl"
    first = Kept(tmp_path / "kept").keep(experiment, cell, of_images(tmp_path, "old", annotations="one"))
    alone = file.read_text()
    for name, annotations in (("new", "one"), ("old", "two")):
        kept = Kept(tmp_path / "kept")
        assert kept.find(experiment, cell) == first
        second = kept.keep(experiment, cell, of_images(tmp_path, name, annotations=annotations))
        assert second.place != first.place
        named = f"different images: {first.place}, {second.place}; remove those that are outdated"
        for store in (kept, Kept(tmp_path / "kept")):
            with pytest.raises(UsageError, match=named):
                store.find(experiment, cell)
        file.write_text(alone)


def test_what_another_process_has_kept_meanwhile_is_not_replaced(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan())
    ours, theirs = Kept(tmp_path / "kept"), Kept(tmp_path / "kept")
    first = theirs.keep(experiment, experiment.cells[0], finished(tmp_path / "run"))
    second = ours.keep(experiment, experiment.cells[0], finished(tmp_path / "other", training__rounds=9))
    assert first.place != second.place
    assert len(read_json_lines(tmp_path / "kept" / "tiny.jsonl")) == 2


def planned(settings: Settings, facts: DataFacts | None = None) -> Cell:
    return Cell("FedAvg", "", None, settings, facts)


def test_settings_that_change_no_result_may_differ() -> None:
    settings, _ = resolve("histology", "fedavg", "smoke")
    done, _ = resolve("histology", "fedavg", "smoke", overrides={"federation.workers": 3, "federation.timeout": 5.0})
    other, _ = resolve("histology", "fedavg", "smoke", overrides={"training.momentum": 0.5})
    facts = find_data_facts(settings)
    assert agree(planned(settings), done, facts)
    assert agree(planned(settings, facts), done, facts)
    assert not agree(planned(settings), other, facts)


def test_what_a_folder_decides_may_be_open_in_the_plan_but_not_differ_from_it() -> None:
    where = {"data.folder": "/images"}
    settings, _ = resolve("classification", "fedavg", "smoke", overrides=where)
    narrower, _ = resolve("classification", "fedavg", "smoke", overrides=where | {"data.sites": ["A"]})
    elsewhere, _ = resolve("classification", "fedavg", "smoke", overrides={"data.folder": "/others"})
    assert agree(planned(settings), settings, FOUND)
    assert agree(planned(settings, FOUND), settings, FOUND)
    assert not agree(planned(settings, replace(FOUND, fingerprints=("two",))), settings, FOUND)
    assert not agree(planned(narrower), settings, FOUND)
    assert not agree(planned(settings), elsewhere, FOUND)
    assert agree(planned(settings), elsewhere, FOUND, paths=False)


def test_settings_that_a_method_got_later_have_their_defaults(tmp_path: Path) -> None:
    settings, _ = resolve("histology", "harmofl", "smoke")
    text = "\n".join(line for line in settings.to_toml().splitlines() if not line.startswith("decay"))
    (tmp_path / "config.toml").write_text(text)
    assert read_settings(tmp_path).method["decay"] == 0.1
    assert agree(planned(settings), read_settings(tmp_path), find_data_facts(settings))


def test_a_broken_kept_result_is_named(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment, file = read_experiment(write_plan()), tmp_path / "kept" / "tiny.jsonl"
    Kept(tmp_path / "kept").keep(experiment, experiment.cells[0], finished(tmp_path / "run"))
    whole = file.read_text()
    for there, instead, message in (
        ('"seed": 0, "device"', '"seed": "one", "device"', "fedavg/seed-0: .*seed = 'one'"),
        ('"summary"', '"sumary"', "holds a line that no experiment has written: .*summary"),
    ):
        file.write_text(whole.replace(there, instead))
        with pytest.raises(UsageError, match=f"tiny.jsonl.*{message}"):
            Kept(tmp_path / "kept")
    file.write_text(whole)
    with pytest.raises(UsageError, match="there is no such kept cell"):
        read_kept(tmp_path / "kept" / "tiny.jsonl" / "fedavg" / "seed-7")
