"""A model for a hospital that took no part."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import harmofl
from folders import segmentation_folder, write_manifest
from harmofl.errors import UsageError
from harmofl.inference.adaptation import measure_movement
from harmofl.runs.model_folder import open_model, read_description
from harmofl.states import snapshot
from runs import call

SMOKE = {"training.rounds": 1, "data.size": 32, "federation.workers": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    data = segmentation_folder(folder / "data", sites=3)
    for method in ("fedavg", "fedbn", "local"):
        harmofl.train("segmentation", method, data=data, preset="smoke", settings=SMOKE, out=folder / method)
    return folder


def bright_images(folder: Path, count: int = 10, size: int = 48) -> Path:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    for number in range(count):
        pixels = generator.integers(200, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_weights_stay_and_statistics_become_those_of_the_images(trained: Path, tmp_path: Path) -> None:
    summary = harmofl.adapt(trained / "fedavg", bright_images(tmp_path / "new"), out=tmp_path / "model")
    before, after = open_model(trained / "fedavg" / "model").model, open_model(tmp_path / "model").model
    changed = {n for n, t in snapshot(after).items() if not torch.equal(t, snapshot(before)[n])}
    assert changed
    assert all("running" in name or "num_batches" in name for name in changed)
    assert (summary.images, summary.inputs) == (10, 40)  # a 48-pixel image has four windows of 32
    assert summary.shift_of_means > 0
    assert summary.ratio_of_deviations > 1
    assert read_description(tmp_path / "model")["adapted"]["images"] == 10


def test_labels_are_not_read(trained: Path, tmp_path: Path) -> None:
    """The same statistics with masks that are no masks at all, named by a manifest."""
    plain = bright_images(tmp_path / "plain")
    labelled = bright_images(tmp_path / "labelled")
    (labelled / "nonsense.txt").write_text("not a mask")
    rows = [{"site": "X", "image": f"{n}.png", "mask": "nonsense.txt"} for n in range(10)]
    write_manifest(labelled, rows)
    for name, data in (("a", plain), ("b", labelled)):
        harmofl.adapt(trained / "fedavg", data, out=tmp_path / name)
    first, second = (snapshot(open_model(tmp_path / name).model) for name in ("a", "b"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_images_of_several_hospitals_are_told_apart_by_a_warning(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = bright_images(tmp_path / "new", 16)
    rows = [{"site": "B" if number % 2 else "A", "image": f"{number}.png"} for number in range(16)]
    write_manifest(folder, rows)
    harmofl.adapt(trained / "fedavg", folder, out=tmp_path / "both")
    assert "names 2 sites (A, B): statistics of all their images together fit none" in caplog.text
    caplog.clear()
    write_manifest(folder, rows[::2])
    assert harmofl.adapt(trained / "fedavg", folder / "manifest.csv", out=tmp_path / "one").images == 8
    assert caplog.text == ""


def test_where_sites_keep_layers_their_mean_is_adapted(trained: Path, tmp_path: Path) -> None:
    harmofl.adapt(trained / "fedbn", bright_images(tmp_path / "new"), out=tmp_path / "model")
    assert harmofl.load_model(tmp_path / "model")(torch.rand(1, 3, 32, 32)).shape == (1, 2, 32, 32)


@pytest.mark.parametrize(
    ("method", "count", "words"),
    [("fedavg", 7, "7 images that can be read; statistics take at least 8"), ("local", 10, "each site trained alone")],
)
def test_too_few_images_and_models_without_a_common_part_are_refused(
    trained: Path, tmp_path: Path, method: str, count: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        harmofl.adapt(trained / method, bright_images(tmp_path / "new", count), out=tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_an_image_that_cannot_be_read_is_named_and_does_not_stop_the_others(trained: Path, tmp_path: Path) -> None:
    data = bright_images(tmp_path / "new", 12)
    (data / "3.png").write_bytes(b"no picture")
    result = call(["adapt", str(trained / "fedavg"), "--data", str(data), "--out", str(tmp_path / "model")])
    assert result.returncode == 0, result.stderr
    assert "3.png" in result.stderr
    assert "Statistics of 11 images" in result.stdout
    assert json.loads((tmp_path / "model" / "model.json").read_text())["adapted"]["inputs"] == 44
    again = call(["adapt", str(trained / "fedavg"), "--data", str(data), "--out", str(tmp_path / "model")])
    assert again.returncode == 2
    assert "holds a model already" in again.stderr


def test_a_model_without_statistics_is_refused(tmp_path: Path) -> None:
    data = segmentation_folder(tmp_path / "data", sites=2)
    settings = SMOKE | {"model.norm": "group"}
    harmofl.train("segmentation", "fedavg", data=data, preset="smoke", settings=settings, out=tmp_path / "run")
    with pytest.raises(UsageError, match=r"model\.norm = 'group' keeps no statistics"):
        harmofl.adapt(tmp_path / "run", bright_images(tmp_path / "new"), out=tmp_path / "model")


def test_movement_is_that_of_the_layer_that_moved_most_in_old_deviations_and_as_a_factor() -> None:
    """Deeper layers see normalized features, and hardly move however unlike the images are."""
    before = {"a.running_mean": torch.tensor([0.0, 1.0, 5.0]), "a.running_var": torch.tensor([4.0, 1.0, 1.0])}
    after = {"a.running_mean": torch.tensor([4.0, 1.5, 5.0]), "a.running_var": torch.tensor([1.0, 9.0, 1.0])}
    deeper = {f"{layer}.{name}": torch.ones(64) for layer in "bc" for name in ("running_mean", "running_var")}
    before, after = before | deeper, after | deeper
    shift, ratio = measure_movement(before, after)
    assert shift == pytest.approx(0.5, rel=1e-4)  # 2, 0.5 and 0 old deviations
    assert ratio == pytest.approx(2.0, rel=1e-4)  # factors 2, 3 and 1


NETWORK = """
from torch import nn
from harmofl import NetworkEntry, register

def build(channels, classes, features):
    return nn.Sequential(nn.Conv2d(channels, classes, 3, padding=1), nn.BatchNorm2d(classes))

register(NetworkEntry("mine", ("segmentation",), build, "0"))
"""


def test_a_model_whose_network_comes_from_a_plugin_is_adapted_with_that_plugin(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(NETWORK)
    plugin = ["--plugin", str(tmp_path / "my.py")]
    data = segmentation_folder(tmp_path / "data", sites=2)
    settings = [f"--set={name}={value}" for name, value in (SMOKE | {"model.network": "mine"}).items()]
    wanted = ["--task", "segmentation", "--method", "fedavg", "--data", str(data), "--preset", "smoke", *settings]
    assert call(["train", *wanted, "--out", str(tmp_path / "run"), *plugin]).returncode == 0
    new = str(bright_images(tmp_path / "new"))
    result = call(["adapt", str(tmp_path / "run"), "--data", new, "--out", str(tmp_path / "model"), *plugin])
    assert result.returncode == 0, result.stderr
    assert "Statistics of 10 images" in result.stdout
