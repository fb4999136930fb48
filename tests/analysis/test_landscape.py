"""Landscapes of tiny runs: what is found, what is kept, and what is refused."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harmofl
import harmofl.analysis.landscape as module
from folders import blob, classification_folder, picture
from harmofl import registry
from harmofl.analysis.directions import flatten
from harmofl.analysis.landscape import fit_time, landscape
from harmofl.analysis.loaded_runs import load_runs
from harmofl.analysis.local_paths import combine_from_models, local_path
from harmofl.analysis.losses import mean_loss
from harmofl.analysis.measured_terms import read_terms
from harmofl.analysis.results import Landscape, Options
from harmofl.devices import threads
from harmofl.errors import UsageError
from harmofl.events import Event, StepDone
from harmofl.experiments.privacy_study import privacy_study
from harmofl.reporting.drift_figures import drift_with_terms
from harmofl.states import snapshot
from runs import SITES, equal, gradients_of, records, train

TINY: dict[str, Any] = {"points": 9, "local_epochs": 2, "images": 8, "directions": 2, "growths": 0}
SOME = SITES[:3]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    methods: dict[str, dict[str, Any]] = {
        "fedavg": {},
        "harmofl": {},
        "amplitude": {"method": "harmofl", "method__radius": 0.0},
        "fedbn": {},
        "local": {},
    }
    for name, more in methods.items():
        train(folder / name, **({"method": name, "data__sites": SOME} | more))
    return {name: folder / name for name in methods}


@pytest.fixture(scope="module")
def found(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Landscape, Path]:
    out = tmp_path_factory.mktemp("out")
    return landscape([runs["fedavg"], runs["harmofl"]], out, **TINY), out


@dataclass(frozen=True)
class Alone:
    """One run's landscape, what the watch saw, and the times of the run's files before and after."""

    result: Landscape
    seen: list[StepDone]
    before: dict[Path, int]
    after: dict[Path, int]


@pytest.fixture(scope="module")
def alone(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Alone:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in runs["fedavg"].rglob("*")}

    before, seen = times(), list[Event]()
    result = landscape([runs["fedavg"]], tmp_path_factory.mktemp("alone"), **TINY, watch=seen.append)
    return Alone(result, [event for event in seen if isinstance(event, StepDone)], before, times())


def same(one: Landscape, other: Landscape) -> bool:
    plain = all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in fields(one)
        if field.name != "views"
    )
    return plain and all(
        np.array_equal(value, getattr(other.views[name], part))
        for name, view in one.views.items()
        for part, value in vars(view).items()
    )


def test_every_plane_has_every_run_and_site(found: tuple[Landscape, Path]) -> None:
    result = found[0]
    assert (result.runs, result.sites, result.num_images) == (("FedAvg", "HarmoFL"), tuple(SOME), (8, 8, 8))
    assert {name: view.losses.shape for name, view in result.views.items()} == dict.fromkeys(
        ("near", "wide", "drift"), (2, 3, 9, 9)
    )
    assert (result.views["near"].span, result.views["wide"].span) == (0.1, 0.8)
    assert all(np.isfinite(view.losses).all() for view in result.views.values())


def test_the_model_itself_is_in_the_middle_of_the_random_planes(
    found: tuple[Landscape, Path], runs: dict[str, Path]
) -> None:
    """The loss there is that of the run's model on raw images."""
    result = found[0]
    centres = [view.losses[:, :, 4, 4] for view in result.views.values()]
    np.testing.assert_array_equal(centres[0], centres[1])
    assert not np.array_equal(centres[0], centres[2])  # there with the batches' own statistics
    np.testing.assert_array_equal(result.centres, centres[0])
    for number, name in enumerate(("fedavg", "harmofl")):
        (run,) = load_runs([runs[name]], "cpu")
        site = registry.tasks.find("histology").load_site(SOME[1], run.settings.data)
        chosen = list(run.batches(site, 8, seed=0))
        with threads(1), torch.no_grad():
            loss = mean_loss(run.models[SOME[1]].network, chosen, run.loss)
        assert result.centres[number, 1] == pytest.approx(loss)


def test_paths_start_at_the_model_and_lie_in_the_plane_that_is_made_of_them(found: tuple[Landscape, Path]) -> None:
    near, drift = (found[0].views[name] for name in ("near", "drift"))
    assert drift.paths.shape == (2, 3, 3, 2)
    assert not drift.paths[:, :, 0].any()
    assert (drift.shares > 2 * near.shares).all()
    assert (drift.shares <= 1 + 1e-9).all()
    assert np.abs(drift.paths).max() * 1.3 == pytest.approx(drift.span)


def test_a_path_is_the_sites_own_training(runs: dict[str, Path]) -> None:
    """A federation of this one site that starts from the same model takes the same steps in its first round."""
    (run,) = load_runs([runs["fedavg"]], "cpu")
    site = registry.tasks.find("histology").load_site(SOME[0], run.settings.data)
    before = snapshot(run.models[SOME[0]])
    with threads(1):
        path = local_path(run, site, 2, combine_from_models(run))
    assert equal(before, snapshot(run.models[SOME[0]]))
    assert not run.models[SOME[0]].training
    again = runs["fedavg"].parent / "again"
    rate = {"training__learning_rate_schedule": "constant", "model__initial": str(runs["fedavg"] / "model")}
    train(again, rounds=1, data__sites=SOME[:1], **rate)
    drift = next(record["drift"] for record in records(again) if record["phase"] == "train" and "drift" in record)
    assert path.num_steps == 1  # so that the order of the images does not matter
    assert path.drift == pytest.approx(drift, rel=1e-3)
    assert path.drift == pytest.approx(float(flatten(path.steps[0]).square().sum()), rel=1e-5)
    assert float(flatten(path.steps[1]).norm()) > float(flatten(path.steps[0]).norm())


def test_another_seed_gives_other_numbers(alone: Alone, runs: dict[str, Path], tmp_path: Path) -> None:
    other = landscape([runs["fedavg"]], tmp_path, **(TINY | {"seed": 1}))
    assert not np.array_equal(alone.result.rises, other.rises)


def test_a_damaged_file_is_computed_anew_with_the_same_numbers(
    alone: Alone, found: tuple[Landscape, Path], runs: dict[str, Path], tmp_path: Path
) -> None:
    whole = (found[1] / "landscape.npz").read_bytes()
    (tmp_path / "landscape.npz").write_bytes(whole[: len(whole) // 2])
    assert same(alone.result, landscape([runs["fedavg"]], tmp_path, **TINY))


def test_a_run_looks_the_same_alone_and_beside_others(alone: Alone, found: tuple[Landscape, Path]) -> None:
    np.testing.assert_array_equal(alone.result.views["near"].losses[0], found[0].views["near"].losses[0])
    np.testing.assert_array_equal(alone.result.rises[0], found[0].rises[0])


def test_numbers_do_not_depend_on_the_cores(
    found: tuple[Landscape, Path], runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harmofl.analysis.losses.num_cores", lambda: 1)
    alone = landscape([runs["fedavg"], runs["harmofl"]], tmp_path / "one", **TINY)
    monkeypatch.setattr("harmofl.analysis.losses.num_cores", lambda: 3)
    assert same(alone, landscape([runs["fedavg"], runs["harmofl"]], tmp_path / "three", **TINY))
    assert same(alone, found[0])


def test_what_is_known_is_not_computed_again(
    found: tuple[Landscape, Path], runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(module, "survey", refuse)
    result, out = found
    assert same(result, landscape([runs["fedavg"], runs["harmofl"]], out, **TINY))
    for folders, changes in (
        ([runs["fedavg"], runs["harmofl"]], {"span": 0.2}),
        ([runs["harmofl"], runs["fedavg"]], {}),
        ([runs["fedavg"], runs["amplitude"]], {}),
    ):
        with pytest.raises(AssertionError, match="computed again"):
            landscape(folders, out, **(TINY | changes))


def test_progress_of_both_parts_of_the_work_counts_to_its_end(alone: Alone) -> None:
    paths, planes = alone.seen[: len(SOME)], alone.seen[len(SOME) :]
    assert {step.what.rpartition(" from ")[0] for step in paths} == {"training on"}
    assert [(step.done, step.total) for step in paths] == [(number + 1, len(SOME)) for number in range(len(SOME))]
    assert [step.done for step in planes] == list(range(1, planes[-1].total + 1))
    assert {step.what.rpartition(" at ")[2] for step in alone.seen} == set(SOME)


def test_runs_are_left_as_they_were(alone: Alone) -> None:
    assert alone.before == alone.after


def test_gradients_of_a_run_are_those_of_its_landscape(alone: Alone, runs: dict[str, Path]) -> None:
    gradients = gradients_of(runs["fedavg"])
    assert list(gradients) == SOME
    assert [each.squared_norm for each in gradients.values()] == alone.result.squared_gradients[0].tolist()


def test_sites_may_keep_their_batch_norms(runs: dict[str, Path], tmp_path: Path) -> None:
    result = landscape([runs["fedbn"]], tmp_path, **TINY)
    assert np.isfinite(result.views["near"].losses).all()


def test_runs_of_one_method_are_told_apart_by_their_folders(runs: dict[str, Path]) -> None:
    loaded = load_runs([runs["fedavg"], runs["amplitude"], runs["harmofl"]], "cpu")
    assert [run.label for run in loaded] == ["FedAvg", "HarmoFL (amplitude)", "HarmoFL"]


def test_sites_that_share_nothing_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the sites of local share no model"):
        landscape([runs["local"]], tmp_path, **TINY)


def test_runs_on_other_data_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    train(tmp_path / "other", data__sites=SOME, data__shift=2.0, rounds=1)
    with pytest.raises(UsageError, match=r"differ in data\.shift"):
        landscape([runs["fedavg"], tmp_path / "other"], tmp_path / "out", **TINY)


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    """Images in a folder, and a run that was trained on them."""
    images, run = classification_folder(tmp_path / "images"), tmp_path / "run"
    settings = {"data.size": 24, "training.rounds": 1, "federation.workers": 1}
    harmofl.train("classification", "fedavg", data=images, preset="smoke", settings=settings, out=run)
    return images, run


def test_changed_images_are_refused_also_where_the_landscape_is_known(own: tuple[Path, Path], tmp_path: Path) -> None:
    images, run = own
    known = landscape([run], tmp_path / "out", **TINY)
    assert same(known, landscape([run], tmp_path / "out", **TINY))
    picture(images / "site-1" / "3.png", blob(24, 99, 1)[0])
    with pytest.raises(UsageError, match=r"site-1 took part in training, but with other images .*; a run is looked at"):
        landscape([run], tmp_path / "out", **TINY)
    with pytest.raises(UsageError, match="site-1 took part in training, but with other images"):
        privacy_study(tmp_path / "privacy", run=run, quick=True)


def test_other_labels_are_another_landscape(own: tuple[Path, Path], tmp_path: Path) -> None:
    images, run = own
    before = landscape([run], tmp_path / "out", **TINY)
    manifest = images / "manifest.csv"
    manifest.write_text(manifest.read_text().replace("healthy", "x").replace("ill", "healthy").replace("x", "ill"))
    assert not same(before, landscape([run], tmp_path / "out", **TINY))


def test_a_centralized_run_is_drawn_with_every_sites_terms(tmp_path: Path) -> None:
    train(tmp_path / "run", "centralized", data__sites=SOME, rounds=1)
    found = landscape([tmp_path / "run"], tmp_path / "out", **TINY)
    (terms,) = read_terms(tmp_path / "out")
    assert (list(terms.curves), list(terms.terms.drifts)) == (["pooled"], list(found.sites))
    texts = drift_with_terms([terms]).legends[0].get_texts()
    assert [text.get_text() for text in texts] == [*SOME, "pooled"]


def test_a_folder_without_a_finished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"summary\.json is missing"):
        landscape([tmp_path], tmp_path / "out")
    with pytest.raises(UsageError, match="no run given"):
        landscape([], tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("points", 10, "an odd number from 9, or 0"),
        ("points", 7, "an odd number from 9, or 0"),
        ("span", 0.0, "above 0"),
        ("local_epochs", 1, "2 or more"),
        ("images", -1, "or more"),
        ("directions", 1, "2 or more"),
        ("growths", 5, "from 0 to 4"),
        ("seed", -1, "0 or more"),
    ],
)
def test_options_say_what_is_allowed(name: str, value: float, allowed: str) -> None:
    with pytest.raises(UsageError, match=f"{name} = {value}: must be .*{allowed}"):
        Options(**{name: value})  # type: ignore[arg-type]


def test_larger_networks_see_fewer_images_on_coarser_planes(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_runs([runs["fedavg"]], "cpu")
    assert (sized := fit_time(loaded, Options())).images == module.MOST_IMAGES
    assert sized.points == 17
    monkeypatch.setattr(module, "OPERATIONS", 1.0)
    assert (sized := fit_time(loaded, Options())).images == module.FEWEST_IMAGES
    assert sized.points == 9


def test_several_runs_share_the_time(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_runs([runs["fedavg"]], "cpu")
    per_point = module.operations_per_image(loaded[0]) * len(SOME)
    monkeypatch.setattr(module, "OPERATIONS", per_point * 100 * 659)  # 17 × 17 twice, and 9 × 9
    assert fit_time(loaded, Options()).images == 100
    assert fit_time(2 * loaded, Options()).images == 50
    assert fit_time(loaded, Options(points=9)).images > 100
    assert fit_time(loaded, Options(images=12)) == Options(points=17, images=12)
