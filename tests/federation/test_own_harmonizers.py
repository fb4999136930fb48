"""Methods whose harmonizer holds something of each site's own: from training to a hospital that took no part."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import harmofl
from folders import segmentation_folder
from harmofl import registry
from harmofl.analysis.loaded_runs import load_runs
from harmofl.analysis.local_paths import combine_from_models
from harmofl.methods.site_normalization import SiteNormalization
from harmofl.runs.model_folder import open_model
from harmofl.runs.site_models import models_for
from harmofl.settings import resolve
from runs import SITES, differences, stop_after_round, tensors, tiny, train, weights

METHODS = ["fedrdn", "sitealign"]
SMOKE = {"training.rounds": 1, "data.size": 32, "data.min_images_for_amplitude": 2, "federation.workers": 1}


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_gives_the_same_bits(tmp_path: Path, method: str) -> None:
    train(tmp_path / "whole", method)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", method, watch=stop_after_round(1))
    train(tmp_path / "cut", method, resume=True)
    assert differences(tmp_path / "whole", tmp_path / "cut") == []


@pytest.mark.slow
def test_workers_draw_the_same_random_sites(tmp_path: Path) -> None:
    train(tmp_path / "one", "fedrdn")
    train(tmp_path / "two", "fedrdn", federation__workers=2)
    assert differences(tmp_path / "one", tmp_path / "two") == []


def test_every_site_s_model_holds_the_statistics_of_its_own_training_images(tmp_path: Path) -> None:
    train(tmp_path / "run", "fedrdn", rounds=1)
    data = resolve("histology", "fedrdn", "smoke", overrides=tiny())[0].data
    first, second = (weights(tmp_path / "run", site) for site in SITES[:2])
    own = registry.tasks.find("histology").load_site(SITES[1], data).train
    images = own.load(torch.arange(len(own))).images
    torch.testing.assert_close(second["harmonizer.mean"].flatten(), images.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(second["harmonizer.deviation"].flatten(), images.flatten(2).std(2, False).mean(0))
    different = {name for name in first if not torch.equal(first[name], second[name])}
    assert different == {"harmonizer.mean", "harmonizer.deviation"}


def test_the_server_gathers_every_site_s_statistics_and_the_models_hold_them_too(tmp_path: Path) -> None:
    train(tmp_path / "run", "fedrdn", rounds=1)
    checkpoint, _ = tensors(tmp_path / "run" / "checkpoint" / "round-00001.safetensors")
    gathered = {name.removeprefix("combined."): value for name, value in checkpoint.items() if "combined" in name}
    assert {f"harmonizer.mean.{site}" for site in SITES} < gathered.keys()
    (run,) = load_runs([tmp_path / "run"], "cpu")
    again = combine_from_models(run)
    assert again.keys() == gathered.keys()
    assert all(torch.equal(tensor, gathered[name]) for name, tensor in again.items())


@pytest.mark.parametrize("method", METHODS)
def test_a_hospital_that_took_no_part_measures_its_own_images(tmp_path: Path, method: str) -> None:
    summary = train(tmp_path / "run", method, rounds=1, data__hold_out_site="hospital-2")
    settings, chosen = resolve("histology", method, "smoke", overrides=tiny(data__hold_out_site="hospital-2"))
    images = registry.tasks.find("histology").open(settings.data).whole("hospital-2")
    candidates = models_for(tmp_path / "run" / "model", "hospital-2", images, settings)
    layer = candidates.models[0].harmonizer
    assert summary["unseen"]["hospital-2"]["note"] == candidates.note == layer.note
    expected = chosen.harmonizer((3, 32, 32))
    expected.measure([images.load(torch.arange(len(images))).images])
    for name in layer.own:
        torch.testing.assert_close(layer.get_buffer(name), expected.get_buffer(name))


@pytest.mark.parametrize("method", METHODS)
def test_an_adapted_model_can_be_evaluated_exported_and_used(tmp_path: Path, method: str) -> None:
    data = segmentation_folder(tmp_path / "data", sites=3)
    harmofl.train("segmentation", method, data=data, preset="smoke", settings=SMOKE, out=tmp_path / "run")
    summary = harmofl.adapt(tmp_path / "run", data, out=tmp_path / "ours")
    assert summary.change_of_harmonizer is not None
    assert json.loads((tmp_path / "ours" / "model.json").read_text())["adapted"]["change_of_harmonizer"] > 0
    harmofl.export(tmp_path / "ours", "onnx", out=tmp_path / "file")  # which compares the file with the model
    (outcome, *_) = harmofl.predict(tmp_path / "ours", [next(data.rglob("*.png"))], out=tmp_path / "masks")
    assert not outcome.error
    assert harmofl.evaluate(tmp_path / "ours", data=data, split="all")


def test_the_adapted_statistics_are_those_of_the_folder(tmp_path: Path) -> None:
    """Without batch norm too: the harmonizer is something to adapt by itself."""
    data = segmentation_folder(tmp_path / "data", sites=2)
    settings = SMOKE | {"model.norm": "group"}
    harmofl.train("segmentation", "fedrdn", data=data, preset="smoke", settings=settings, out=tmp_path / "run")
    grey = tmp_path / "grey"
    grey.mkdir()
    for number in range(8):
        pixels = np.full((32, 32, 3), (51, 102, 153), dtype=np.uint8)
        pixels[:, :16] += 51  # half of the image is a fifth brighter
        Image.fromarray(pixels).save(grey / f"{number}.png")
    summary = harmofl.adapt(tmp_path / "run", grey, out=tmp_path / "ours")
    assert (summary.images, summary.shift_of_means) == (8, None)
    layer = open_model(tmp_path / "ours").model.harmonizer
    assert isinstance(layer, SiteNormalization)
    assert layer.mean.flatten().tolist() == pytest.approx([0.3, 0.5, 0.7])
    assert layer.deviation.flatten().tolist() == pytest.approx([0.1, 0.1, 0.1])
