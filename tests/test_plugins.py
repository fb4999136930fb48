import logging
from pathlib import Path

import pytest

import harmofl
from harmofl import plugins, registry
from harmofl.errors import UsageError
from harmofl.federation.messages import settings_to_send
from harmofl.plugins import load_plugin, plugins_in
from harmofl.runs.model_folder import read_description
from harmofl.settings import read_toml, resolve
from runs import differences

pytestmark = pytest.mark.usefixtures("own_registries")

NETWORK = """
from dataclasses import dataclass
import torch.nn.functional as F
from torch import nn
from harmofl import LossEntry, Method, NetworkEntry, ScoreEntry, register

build = lambda channels, classes, features: nn.Sequential(nn.Conv2d(channels, classes, 3, padding=1), nn.ReLU())
register(NetworkEntry("tiny", ("segmentation",), build, "0"))

register(LossEntry("mine", ("segmentation",), lambda logits, classes: F.cross_entropy(logits, classes) / 2))

class Area:
    def __init__(self, classes, thorough):
        self.areas = []

    def add(self, logits, batch):
        self.areas += (logits.argmax(dim=1) > 0).float().mean(dim=(1, 2)).tolist()

    def scores(self):
        return {"area": sum(self.areas) / len(self.areas)}

register(ScoreEntry("area", kinds=("segmentation",), scorer=Area))

@dataclass(frozen=True)
class Pull:
    strength: float = 0.5

    def start(self, reference):
        return None

register(Method("Mine", penalties=(Pull(),)))
"""
SMOKE = {"training.rounds": 1, "data.images": 10, "data.size": 16, "model.network": "tiny"}
MINE = {"training.loss": "mine", "training.score": "area"}


def write(folder: Path, code: str, name: str = "my.py") -> Path:
    (folder / name).write_text(code)
    return folder / name


def forget_plugins() -> None:
    """Be a process that has loaded no plugin."""
    plugins._loaded.clear()
    for each in registry.ALL:
        for name in ("tiny", "mine", "area"):
            each._entries.pop(name, None)


def test_a_plugin_registers_and_is_run_once(tmp_path: Path) -> None:
    code = "import harmofl\ncount = 0\nharmofl.register(harmofl.Method('Mine'))\n"
    module = load_plugin(write(tmp_path, code))
    assert registry.methods.find("mine").name == "Mine"
    assert load_plugin(tmp_path / "my.py") is module


def test_plugins_of_the_same_name_in_different_folders_are_two(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        load_plugin(write(tmp_path / name, f"import harmofl\nharmofl.register(harmofl.Method('{name}'))\n"))
    assert {"a", "b"} <= set(registry.methods.names())


@pytest.mark.parametrize(
    ("code", "message"),
    [("1 / 0", r"plugin .*my\.py: ZeroDivisionError: division by zero"), ("x = (", r"plugin .*my\.py: SyntaxError")],
)
def test_a_plugin_that_fails_is_named(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_plugin(write(tmp_path, code))
    with pytest.raises(UsageError, match=r"plugin .*other\.py: no such file"):
        load_plugin(tmp_path / "other.py")


def test_a_plugin_that_registers_nothing_is_said_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_plugin(write(tmp_path, "x = 1\n"))
    assert "registers nothing" in caplog.text


def test_workers_do_not_say_again_that_a_plugin_registers_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load_plugin(write(tmp_path, "x = 1\n"))
    small = {"training.rounds": 1, "data.images": 10, "data.size": 16}
    harmofl.train("nuclei", "fedavg", out=tmp_path / "run", preset="smoke", workers=2, settings=small)
    assert "registers nothing" not in capfd.readouterr().err


def test_settings_record_the_plugins_that_are_loaded_and_those_that_they_name(tmp_path: Path) -> None:
    load_plugin(write(tmp_path, "import harmofl\nharmofl.register(harmofl.Method('Mine'))\n"))
    file = {"plugins": {"files": ["elsewhere.py"]}}
    settings, _ = resolve("nuclei", "mine", file=file)
    assert settings.plugins.files == [str(Path("elsewhere.py").absolute()), str(tmp_path / "my.py")]
    with pytest.raises(UsageError, match=r"plugins\.files must be a list of files"):
        plugins_in({"plugins": {"files": "my.py"}})


def test_settings_that_name_a_plugin_do_not_run_it_and_do_not_travel_with_it(tmp_path: Path) -> None:
    path = write(tmp_path, "raise SystemExit('this must never run')\n")
    settings, _ = resolve("nuclei", "fedavg", file={"plugins": {"files": [str(path)]}})
    assert settings_to_send(settings)["plugins"] == {"files": []}


@pytest.mark.slow
def test_a_run_with_a_plugin_reaches_workers_is_repeated_from_its_config_and_its_model_asks_for_the_file(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, NETWORK)
    load_plugin(path)
    out = tmp_path / "one"
    summary = harmofl.train("nuclei", "mine", out=out, preset="smoke", workers=2, settings=SMOKE | MINE)
    assert (summary["metric_name"], summary["missing"]) == ("area", [])
    assert read_toml(out / "config.toml")["plugins"] == {"files": [str(path)]}
    assert read_description(out / "model")["plugins"] == ["my.py"]
    assert str(tmp_path) not in (out / "model" / "model.json").read_text()

    forget_plugins()
    with pytest.raises(
        UsageError, match=r"unknown method 'mine'.*trained with my\.py: load its file first, with --plugin"
    ):
        harmofl.load_model(out / "model")
    harmofl.train(config=out / "config.toml", out=tmp_path / "two", workers=1)
    assert differences(out, tmp_path / "two") == []
    assert harmofl.load_model(out / "model") is not None


def grow(channels: int, classes: int, features: int) -> object:
    """Build a network of this module, which worker processes import."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(channels, classes, 1))


@pytest.mark.slow
def test_what_a_script_registers_reaches_the_workers(tmp_path: Path) -> None:
    harmofl.register(harmofl.NetworkEntry("tiny", ("segmentation",), grow, "0"))  # type: ignore[arg-type]
    summary = harmofl.train("nuclei", "fedavg", out=tmp_path / "run", preset="smoke", workers=2, settings=SMOKE)
    assert not summary["missing"]


def test_what_cannot_reach_the_workers_is_refused_in_words(tmp_path: Path) -> None:
    harmofl.register(harmofl.NetworkEntry("tiny", ("segmentation",), lambda *sizes: grow(*sizes), "0"))  # type: ignore
    with pytest.raises(UsageError, match=r"worker processes: .* must be defined at the top of a file"):
        harmofl.train("nuclei", "fedavg", out=tmp_path / "run", preset="smoke", workers=2, settings=SMOKE)
