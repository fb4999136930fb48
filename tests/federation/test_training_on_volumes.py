import json
from pathlib import Path

import pytest
import torch

import harmofl
from harmofl.data.volumes import PatchSet, VolumeSet
from harmofl.events import Event, RoundFinished
from harmofl.federation.inputs import TrainingInputs
from harmofl.methods.layers import Harmonizer
from harmofl.runs.model_folder import open_model
from harmofl.settings import DataSettings, TrainingSettings, resolve
from harmofl.tasks.prostate import task
from runs import differences
from volumes import write_hospitals

VOLUMES = {"data.dimensions": 3, "data.images": 10, "data.sites": ["HK", "UCL"]}


def train(out: Path, method: str, **settings: object) -> dict:
    return harmofl.train("prostate", method, preset="smoke", out=out, workers=1, settings=VOLUMES | settings)


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "moon", "harmofl"])
def test_every_kind_of_method_trains_on_volumes(method: str, tmp_path: Path) -> None:
    summary = train(tmp_path / "run", method)
    assert set(summary["test"]) == {"HK", "UCL", "average", "std"}
    described = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert described["input"] == {"channels": 1, "depth": 8, "height": 16, "width": 16, "range": [0, 1]}
    own = "HK" if method == "fedbn" else None
    model = open_model(tmp_path / "run" / "model", own).model
    assert model(torch.rand(2, 1, 8, 16, 16)).shape == (2, 2, 8, 16, 16)


def test_two_workers_and_a_resumed_run_give_the_same_bits_on_volumes(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(event: Event) -> None:
        if isinstance(event, RoundFinished):
            raise StopError

    train(tmp_path / "one", "scaffold")
    options = {"preset": "smoke", "out": tmp_path / "two", "workers": 2, "settings": VOLUMES}
    with pytest.raises(StopError):
        harmofl.train("prostate", "scaffold", watch=stop, **options)
    harmofl.train("prostate", "scaffold", resume=True, **options)
    assert differences(tmp_path / "one", tmp_path / "two") == []


def test_site_statistics_and_the_union_of_sites_work_on_volumes_of_a_folder(tmp_path: Path) -> None:
    folder = write_hospitals(tmp_path / "data")
    settings = {"data.dimensions": 3, "data.cache": str(tmp_path / "cache"), "model.statistics": "site"}
    out = tmp_path / "run"
    summary = harmofl.train(
        "prostate", "centralized", preset="smoke", data=folder, out=out, workers=1, settings=settings
    )
    details = summary["details"]["A"]
    assert {"dice_per_case", "hd95_mm", "assd_mm", "surface_dice"} <= details.keys()
    assert "hd95" not in details


def test_every_round_and_epoch_draws_other_patches() -> None:
    settings = DataSettings(dimensions=3, images=10, spacing=[6.0, 6.0, 6.0], patch=[8, 8, 8], patches=2)
    site = task.load_site("HK", settings)
    assert isinstance(site.train, PatchSet)
    inputs = TrainingInputs(site.train, TrainingSettings(local_epochs=2, batch_size=64), torch.device("cpu"))

    def epochs(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [images.flatten(1).sum(dim=1).sort().values for images, _ in inputs.batches(Harmonizer(), generator)]

    first, second = epochs(1)
    assert torch.equal(first, epochs(1)[0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, epochs(2)[0])


def test_whole_volumes_are_scored_in_millimetres() -> None:
    site = task.load_site("UCL", DataSettings(dimensions=3, images=10, spacing=[6.0, 6.0, 6.0], patch=[8, 8, 8]))
    batch = next(iter(site.test["UCL"].batches(1)))
    assert batch.spacings is not None
    assert batch.spacings.tolist() == [[6.0, 6.0, 6.0]]
    assert not isinstance(site.test["UCL"], (PatchSet, VolumeSet))


@pytest.mark.parametrize(
    ("task_name", "settings", "message"),
    [
        ("prostate", {"data.neighbours": 1}, r"data\.neighbours = 1: must be 0 with data\.dimensions = 3"),
        ("prostate", {"model.network": "basic-unet"}, r"for data\.dimensions = 3 there are unet, dynunet"),
        ("prostate", {"data.dimensions": 2, "model.network": "dynunet"}, r"it is for data\.dimensions = 3 only"),
        ("nuclei", {"data.neighbours": 0}, r"the synthetic hospitals of nuclei have no volumes"),
        ("prostate", {"model.strides": [[2, 2]]}, r"model\.strides = \[\[2, 2\]\]: must be a list of at most 10"),
        (
            "prostate",
            {"model.network": "unet", "model.strides": [[1, 2, 2]]},
            r"model\.strides = \[\[1, 2, 2\]\]: model\.network = 'unet' does not follow them; only dynunet would",
        ),
    ],
)
def test_settings_that_do_not_go_with_volumes_are_refused(task_name: str, settings: dict, message: str) -> None:
    with pytest.raises(harmofl.UsageError, match=message):
        resolve(task_name, "fedavg", "smoke", overrides={"data.dimensions": 3} | settings)
