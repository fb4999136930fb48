import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

import harmofl
from harmofl.events import Event, ImagesChosen, RoundsFinished, RoundStarted, RunStarted, event_of
from harmofl.federation.simulation import num_workers
from harmofl.methods.catalogue import fedavg
from harmofl.methods.method import Method
from harmofl.methods.steps import PerturbedDescent
from harmofl.runs.store import Store
from harmofl.settings import resolve
from runs import SITES, differences, equal, records, stop_after_round, tensors, train, weights


def initial_state(out: Path) -> dict[str, torch.Tensor]:
    found = tensors(out / "checkpoint" / "round-00000.safetensors")[0]
    return {name.replace("state.", "network."): tensor for name, tensor in found.items()}


def test_a_run_can_start_from_a_model_folder(tmp_path: Path) -> None:
    train(tmp_path / "first", rounds=1)
    train(tmp_path / "second", rounds=1, seed=7, model__initial=str(tmp_path / "first" / "model"))
    assert equal(initial_state(tmp_path / "second"), weights(tmp_path / "first"))


def test_an_initial_model_of_another_shape_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    train(tmp_path / "first", rounds=1)
    with pytest.raises(harmofl.UsageError, match="does not fit: size mismatch"):
        train(tmp_path / "second", model__features=4, model__initial=str(tmp_path / "first" / "model"))
    assert not (tmp_path / "second").exists()


def test_the_seed_changes_the_weights_and_never_the_data(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(tmp_path / str(seed), rounds=1, seed=seed)
    assert not equal(weights(tmp_path / "0"), weights(tmp_path / "1"))
    configs = [(tmp_path / seed / "config.toml").read_text().replace("seed = 1\n", "seed = 0\n", 1) for seed in "01"]
    assert configs[0] == configs[1]


def test_a_method_of_ones_own_trains_and_can_be_resumed(tmp_path: Path) -> None:
    mine = replace(fedavg, name="Mine", step=PerturbedDescent(radius=0.01))
    assert isinstance(mine, Method)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", mine, watch=stop_after_round(1))
    train(tmp_path / "run", mine, resume=True)
    train(tmp_path / "undisturbed", mine)
    assert differences(tmp_path / "run", tmp_path / "undisturbed") == []


def test_a_full_disk_stops_the_run_with_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Store.save

    def save(self: Store, version: int, *content: object) -> None:
        if version == 2 and self.folder.name == "checkpoint":
            raise OSError(28, "No space left on device")
        honest(self, version, *content)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", save)
        with pytest.raises(harmofl.RunError, match="No space left on device; what was written before is kept"):
            train(tmp_path / "run")
    train(tmp_path / "run", resume=True)
    train(tmp_path / "undisturbed")
    assert differences(tmp_path / "run", tmp_path / "undisturbed") == []


def test_watchers_see_every_record_that_is_written(tmp_path: Path) -> None:
    seen: list[Event] = []
    train(tmp_path / "run", watch=seen.append)
    images, first, *others = seen
    assert images == ImagesChosen("synthetic hospitals")
    assert isinstance(first, RunStarted)
    assert (first.rounds, first.done, first.sites, first.unit) == (2, 0, tuple(SITES), "%")
    others.remove(RoundsFinished(2))
    for number in (1, 2):
        others.remove(RoundStarted(number, tuple(SITES)))
    assert sorted(map(str, others)) == sorted(str(event_of(record)) for record in records(tmp_path / "run"))


def test_public_names_are_there_and_others_are_not() -> None:
    for name in harmofl.__all__:
        assert getattr(harmofl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        harmofl.trian  # noqa: B018


def test_a_method_that_cannot_reach_workers_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    method = harmofl.Method("Lambda", shares=lambda network: list(network.state_dict()))
    with pytest.raises(harmofl.UsageError, match=r"Lambda cannot be sent to worker processes.*no lambda"):
        harmofl.train("histology", method, preset="smoke", workers=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


NOTEBOOK = """
class Everything:
    def __call__(self, network):
        return list(network.state_dict())
"""


@pytest.fixture
def from_a_notebook(monkeypatch: pytest.MonkeyPatch) -> Method:
    """A method defined where no file is: a prompt and a notebook have a main module without `__file__`."""
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec(NOTEBOOK, vars(notebook))
    return Method("Noted", shares=notebook.Everything())


def test_a_method_of_a_notebook_cannot_reach_workers_that_were_asked_for(
    tmp_path: Path, from_a_notebook: Method
) -> None:
    with pytest.raises(harmofl.UsageError, match=r"Noted cannot be sent to worker processes.*defined in a notebook"):
        train(tmp_path / "run", from_a_notebook, federation__workers=2)
    assert not (tmp_path / "run").exists()


def test_a_method_that_cannot_reach_workers_trains_in_this_process_if_none_were_asked_for(
    tmp_path: Path, from_a_notebook: Method
) -> None:
    train(tmp_path / "noted", from_a_notebook, rounds=1, federation__workers=0)
    assert "workers = 0" in (tmp_path / "noted" / "config.toml").read_text()
    train(tmp_path / "plain", rounds=1)
    assert equal(weights(tmp_path / "noted"), weights(tmp_path / "plain"))
    settings, method = resolve("histology", Method("Lambda", shares=lambda network: []), "smoke")
    assert num_workers(settings, method) == 1


def test_a_model_of_an_unknown_method_says_how_to_load_it(tmp_path: Path) -> None:
    mine = replace(fedavg, name="mine alone")
    train(tmp_path / "run", mine, rounds=1)
    with pytest.raises(harmofl.UsageError, match=r"unknown method 'mine-alone'.*harmofl.load_plugin"):
        harmofl.load_model(tmp_path / "run" / "model")
    assert harmofl.load_model(tmp_path / "run" / "model", method=mine)


def test_a_site_that_a_model_does_not_know_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=1)
    with pytest.raises(harmofl.UsageError, match="unknown site 'nowhere'"):
        harmofl.load_model(tmp_path / "run" / "model", site="nowhere")
