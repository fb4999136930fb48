import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harmofl.errors import UsageError
from harmofl.experiments.cells import read_experiment
from harmofl.experiments.kept import Kept, agree, from_rounds, read_kept, to_rounds
from harmofl.runs.finished import read_settings
from harmofl.settings import resolve

WritePlan = Callable[..., Path]
FOUND = {"data.sites": ["A", "B"], "data.channels": 3, "data.classes": ["no", "yes"]}


def finished(folder: Path, **settings: object) -> Path:
    """A run's folder with all that is kept of it."""
    folder.mkdir(parents=True)
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    resolved, _ = resolve("histology", "fedavg", "smoke", overrides=changes | {"seed": 0})
    (folder / "config.toml").write_text(resolved.to_toml())
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


def test_the_scores_of_every_round_are_kept_and_read_back(tmp_path: Path) -> None:
    records = [json.loads(line) for line in (finished(tmp_path / "run") / "records.jsonl").read_text().splitlines()]
    text = to_rounds(records)
    assert text == "round,site,val,test,loss,drift,bytes_up,bytes_down\n1,A,0.75,0.5,0.12346,0.5,10,9\n"
    assert list(from_rounds(text)) == [
        {"round": 1, "site": "A", "phase": "train", "loss": 0.12346, "drift": 0.5, "bytes_up": 10, "bytes_down": 9},
        {"round": 1, "site": "A", "phase": "val", "metric": 0.75},
        {"round": 1, "site": "A", "phase": "test", "metric": 0.5},
    ]


def test_a_kept_result_holds_no_path_and_can_be_read_as_a_run(write_plan: WritePlan, tmp_path: Path) -> None:
    secret = tmp_path / "secret-place"
    experiment = read_experiment(write_plan(), data=secret)
    run = finished(tmp_path / "run", data__folder=str(secret), data__cache=str(secret), **as_found())
    place = Kept(tmp_path / "kept").keep(experiment, experiment.cells[0], run)
    assert place == tmp_path / "kept" / "tiny" / "fedavg" / "seed-0"
    assert {path.name for path in place.iterdir()} == {"config.toml", "rounds.csv", "summary.json"}
    assert not any("secret" in path.read_text() or str(tmp_path) in path.read_text() for path in place.iterdir())
    assert read_kept(place).scores == {"A": 50.0}
    assert read_settings(place).data.sites == ["A", "B"]


def as_found() -> dict[str, object]:
    return {"data__sites": ["A", "B"], "data__channels": 3, "data__classes": ["normal", "tumor"]}


def test_a_kept_result_counts_for_every_experiment_with_a_cell_of_its_configuration(
    write_plan: WritePlan, tmp_path: Path
) -> None:
    experiment = read_experiment(write_plan())
    place = Kept(tmp_path / "kept").keep(experiment, experiment.cells[0], finished(tmp_path / "run"))
    other = read_experiment(write_plan(name="other"))
    kept = Kept(tmp_path / "kept")
    assert [kept.find(other, cell) for cell in other.cells] == [place, None, None, None]
    assert kept.find(other, read_experiment(write_plan(), preset="small").cells[0]) is None
    assert kept.find(other, read_experiment(write_plan(), data=tmp_path).cells[0]) is None  # not of a phantom


def test_nothing_that_is_kept_is_replaced(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan())
    longer = read_experiment(write_plan(), preset="small")
    kept = Kept(tmp_path / "kept")
    first = kept.keep(experiment, experiment.cells[0], finished(tmp_path / "run"))
    before = (first / "config.toml").read_text()
    rounds = longer.cells[0].settings.training.rounds
    changes = {"training__rounds": rounds, "preset": "small"}
    second = kept.keep(longer, longer.cells[0], finished(tmp_path / "longer", **changes))
    assert (first / "config.toml").read_text() == before
    assert second.parent == first.parent
    assert read_settings(second).training.rounds == rounds
    assert kept.keep(experiment, experiment.cells[0], tmp_path / "run") == first
    assert kept.keep(longer, longer.cells[0], tmp_path / "longer") == second


def test_what_changes_no_result_is_no_reason_to_keep_it_again(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan())
    [cell, *_], kept = experiment.cells, Kept(tmp_path / "kept")
    first = kept.keep(experiment, cell, finished(tmp_path / "run"))
    assert kept.keep(experiment, cell, finished(tmp_path / "again", federation__workers=3)) == first
    second = kept.keep(experiment, cell, finished(tmp_path / "longer", training__rounds=9))
    again = finished(tmp_path / "longer again", training__rounds=9, federation__workers=3)
    assert kept.keep(experiment, cell, again) == second
    assert len(list((tmp_path / "kept").rglob("summary.json"))) == 2


def of_images(tmp_path: Path, name: str, *, annotations: list[str] | None = None) -> Path:
    given: dict[str, object] = {"data__folder": str(tmp_path), "data__fingerprints": [name]}
    run = f"{name} {annotations}"
    return finished(tmp_path / run, **as_found(), **given, data__annotations=annotations)


def test_a_plan_that_leaves_its_images_open_has_one_result(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan(), data=tmp_path)
    [cell, *_], kept = experiment.cells, Kept(tmp_path / "kept")
    first = kept.keep(experiment, cell, of_images(tmp_path, "old", annotations=["one"]))
    assert kept.find(experiment, cell) == first
    for run in (of_images(tmp_path, "new"), of_images(tmp_path, "old", annotations=["two"])):
        second = kept.keep(experiment, cell, run)
        assert second != first
        for store in (kept, Kept(tmp_path / "kept")):
            with pytest.raises(UsageError, match=f"different images: {first}, {second}; remove those that are outdat"):
                store.find(experiment, cell)
        shutil.rmtree(second)
        kept = Kept(tmp_path / "kept")
        assert kept.find(experiment, cell) == first


def test_a_result_of_known_masks_comes_before_one_that_does_not_know_its_own(
    write_plan: WritePlan, tmp_path: Path
) -> None:
    experiment = read_experiment(write_plan(), data=tmp_path)
    [cell, *_], kept = experiment.cells, Kept(tmp_path / "kept")
    first = kept.keep(experiment, cell, of_images(tmp_path, "old"))
    second = kept._place(experiment, cell).with_name("seed-0-later")
    shutil.copytree(first, second)
    known = read_settings(first).with_values("data", annotations=["one"])
    (second / "config.toml").write_text(known.to_toml())
    planned = cell.settled(lambda settings: settings.with_values("data", fingerprints=["old"], annotations=["one"]))
    assert Kept(tmp_path / "kept").find(experiment, planned) == second


def test_what_another_process_has_kept_meanwhile_is_not_replaced(write_plan: WritePlan, tmp_path: Path) -> None:
    experiment = read_experiment(write_plan())
    ours, theirs = Kept(tmp_path / "kept"), Kept(tmp_path / "kept")
    first = theirs.keep(experiment, experiment.cells[0], finished(tmp_path / "run"))
    second = ours.keep(experiment, experiment.cells[0], finished(tmp_path / "other", training__rounds=9))
    assert (read_settings(first).training.rounds, read_settings(second).training.rounds) == (2, 9)


def test_settings_that_change_no_result_may_differ() -> None:
    planned, _ = resolve("histology", "fedavg", "smoke")
    done, _ = resolve("histology", "fedavg", "smoke", overrides={"federation.workers": 3, "federation.timeout": 5.0})
    other, _ = resolve("histology", "fedavg", "smoke", overrides={"training.momentum": 0.5})
    assert agree(planned, done)
    assert not agree(planned, other)


def test_what_a_folder_decides_may_be_open_in_the_plan_but_not_differ_from_it() -> None:
    where = {"data.folder": "/images"}
    planned, _ = resolve("classification", "fedavg", "smoke", overrides=where)
    done, _ = resolve("classification", "fedavg", "smoke", overrides=where | FOUND)
    narrower, _ = resolve("classification", "fedavg", "smoke", overrides=where | {"data.sites": ["A"]})
    elsewhere, _ = resolve("classification", "fedavg", "smoke", overrides=FOUND | {"data.folder": "/others"})
    assert agree(planned, done)
    assert not agree(narrower, done)
    assert not agree(planned, elsewhere)
    assert agree(planned, elsewhere, paths=False)


def test_settings_that_a_method_got_later_have_their_defaults(tmp_path: Path) -> None:
    planned, _ = resolve("histology", "harmofl", "smoke")
    text = "\n".join(line for line in planned.to_toml().splitlines() if not line.startswith("radius"))
    (tmp_path / "config.toml").write_text(text)
    assert read_settings(tmp_path).method["radius"] == 0.05
    assert agree(planned, read_settings(tmp_path))


def test_a_broken_kept_result_is_named(tmp_path: Path) -> None:
    place = finished(tmp_path / "kept" / "place")
    (place / "rounds.csv").write_text("round,site,val\none,A,0.5\n")
    with pytest.raises(UsageError, match=r"rounds.csv cannot be read"):
        read_kept(place)
    (place / "config.toml").write_text("seed = 'one'")
    with pytest.raises(UsageError, match=r"config.toml: .*seed = 'one'"):
        Kept(tmp_path / "kept")
