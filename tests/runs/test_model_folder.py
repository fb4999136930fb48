import json
import shutil
from pathlib import Path

import pytest
import torch

import harmofl
from harmofl.errors import UsageError
from harmofl.runs.model_folder import open_model, settings_to_share
from harmofl.settings import resolve
from runs import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "run"
    train(out, "harmofl", rounds=1)
    return out / "model"


def test_a_model_takes_raw_images_and_harmonizes_them_itself(folder: Path) -> None:
    model = harmofl.load_model(folder)
    images = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(model(images), model(images + 0.1), atol=1e-4)  # the mean is the average hospital's
        assert not torch.allclose(model(images), model(images.flip(1)), atol=1e-4)


def test_a_setting_that_excludes_another_is_read_back() -> None:
    settings, method = resolve("nuclei", "harmofl", "smoke", overrides={"method.radius": 0.05})
    assert settings.method["radius_relative"] is None  # the preset's, which the radius replaces
    again, _ = resolve(method=method, file=settings_to_share(settings))
    assert again.method == settings.method


def test_loading_twice_gives_the_same_model_in_eval_mode(folder: Path) -> None:
    first, second = harmofl.load_model(folder), harmofl.load_model(folder)
    assert not first.training
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    first.train()
    first(torch.rand(2, 3, 32, 32))
    assert torch.equal(first.harmonizer.amplitude, second.harmonizer.amplitude)  # it is frozen


def test_the_description_says_what_the_model_needs(folder: Path) -> None:
    description = json.loads((folder / "model.json").read_text())
    assert description["task"] == "histology"
    assert description["input"] == {"channels": 3, "height": 32, "width": 32, "range": [0, 1]}
    assert description["sites"] == [f"hospital-{number}" for number in range(5)]
    assert description["version"] == harmofl.__version__
    assert description["settings"]["method"]["name"] == "harmofl"


def copied(folder: Path, target: Path) -> Path:
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize("size", [0, 100, -1])
def test_weights_that_were_cut_short_are_refused(folder: Path, tmp_path: Path, size: int) -> None:
    broken = copied(folder, tmp_path / "model")
    content = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(content[:size])
    with pytest.raises(harmofl.UsageError, match=r"model\.safetensors: cannot be read"):
        harmofl.load_model(broken)


def test_weights_of_another_network_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    broken = copied(folder, tmp_path / "model")
    description = json.loads((broken / "model.json").read_text())
    description["settings"]["model"]["features"] = 4
    description["version"] = "0.0.1"
    (broken / "model.json").write_text(json.dumps(description))
    with pytest.raises(harmofl.UsageError, match=r"does not fit model\.json: size mismatch") as error:
        harmofl.load_model(broken)
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).endswith(f"(written by harmofl 0.0.1; this is {harmofl.__version__})")


@pytest.mark.parametrize("change", [{"task": "golf"}, {"settings": {}}, {"settings": None}, {"task": None}])
def test_a_description_that_makes_no_sense_is_refused(folder: Path, tmp_path: Path, change: dict[str, object]) -> None:
    broken = copied(folder, tmp_path / "model")
    description = json.loads((broken / "model.json").read_text()) | change
    (broken / "model.json").write_text(json.dumps(description))
    with pytest.raises(harmofl.UsageError):
        open_model(broken)


def test_a_site_is_ignored_where_all_share_one_model(folder: Path) -> None:
    assert harmofl.load_model(folder, site="hospital-1") is not None


def test_one_bit_of_the_weights_is_noticed(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-3] ^= 4
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="checksums differ"):
        open_model(copy)
    description = json.loads((copy / "model.json").read_text())
    del description["sha256"]  # as before version 0.2
    (copy / "model.json").write_text(json.dumps(description))
    assert open_model(copy).model
