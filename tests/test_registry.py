import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.nn.functional as F
from torch import nn

from harmofl import LossEntry, Method, NetworkEntry, ScoreEntry, UsageError, register, registry
from harmofl.cli.listing_tables import show_methods
from harmofl.methods.catalogue import fedavg
from harmofl.settings import resolve
from harmofl.tasks.scorers import ClassificationScorer

pytestmark = pytest.mark.usefixtures("own_registries")

KINDS = ("methods", "tasks", "networks", "losses", "scores", "engines")


def test_every_kind_has_its_entry_points() -> None:
    assert [each.group for each in registry.ALL] == [f"harmofl.{kind}" for kind in KINDS]


@pytest.mark.parametrize("kind", ["methods", "tasks", "networks", "losses", "scores"])
def test_every_entry_of_this_package_is_found_under_its_own_name_and_is_of_its_kind(kind: str) -> None:
    of_kind: registry.Registry[registry.Named] = getattr(registry, kind)
    for name in of_kind.names():
        entry = of_kind.find(name)
        assert registry.key_of(entry.name) == name
        assert of_kind.accepts(entry)


def test_asking_for_names_imports_nothing_heavy() -> None:
    names = "from harmofl import registry; [each.names() for each in registry.ALL]"
    code = f"{names}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["FedAvg", "fedavg", "FEDAVG"])
def test_names_are_found_in_any_case(name: str) -> None:
    assert registry.methods.find(name) is fedavg


def test_an_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(UsageError, match=r"unknown method 'harmolf'; did you mean 'harmofl'\?") as caught:
        registry.methods.find("harmolf")
    assert all(name in str(caught.value) for name in registry.methods.names())


def test_an_entry_is_registered_by_its_class() -> None:
    method = register(Method("My Method"))
    network = register(NetworkEntry("My Net", ("classification",), lambda *sizes: nn.Identity(), ""))
    loss = register(LossEntry("My loss", ("classification",), F.cross_entropy))
    score = register(ScoreEntry("My score", kinds=("classification",), scorer=ClassificationScorer))
    assert registry.methods.find("my-method") is method
    assert registry.networks.find("my-net") is network
    assert registry.losses.find("my-loss") is loss
    assert registry.scores.find("my-score") is score
    with pytest.raises(UsageError, match="register: 7 is none of Method, Task, NetworkEntry, LossEntry, ScoreEntry"):
        register(7)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("model.network", "unett", r"unknown network 'unett'; did you mean 'unet'\? \(known: .*densenet-small, .*mine"),
        ("model.network", "unet", "model.network = 'unet': histology takes densenet121 or densenet-small or mine"),
        ("training.loss", "dicee", "unknown loss 'dicee'; did you mean 'dice'"),
        ("training.loss", "dice", "training.loss = 'dice': histology takes cross-entropy"),
        ("training.score", "acuracy", "unknown score 'acuracy'; did you mean 'accuracy'"),
        ("training.score", "dice", "training.score = 'dice': histology takes accuracy or auc or"),
    ],
)
def test_settings_are_checked_against_the_registry(setting: str, value: str, message: str) -> None:
    register(NetworkEntry("mine", ("classification",), lambda *sizes: nn.Identity(), ""))
    with pytest.raises(UsageError, match=message):
        resolve("histology", "fedavg", "smoke", overrides={setting: value})
    assert resolve("histology", "fedavg", overrides={"model.network": "mine"})[0].model.network == "mine"


# --- installed packages ----------------------------------------------------------------------------------------

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put packages where Python finds installed ones, with one method each: a name and the code that makes it."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package: str, code: str) -> None:
        (tmp_path / f"{package}.py").write_text(f"from harmofl import Method\nmethod = {code}\n")
        about = tmp_path / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[harmofl.methods]\nanything = {package}:method\n")

    return install


def test_a_method_of_an_installed_package_is_found_and_listed(
    install: Install, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    install("package_with_theirs", "Method('Theirs', idea='Nobody knows.')")
    show_methods()
    assert "Nobody knows." in capsys.readouterr().out
    assert registry.methods.find("theirs") is sys.modules["package_with_theirs"].method
    show_methods()
    assert not caplog.records


def test_packages_are_left_alone_while_names_are_known(install: Install) -> None:
    install("package_not_asked", "Method('Theirs')")
    registry.methods.find("fedavg")
    assert "package_not_asked" not in sys.modules
    with pytest.raises(UsageError, match=r"unknown method 'thiers'; did you mean 'theirs'\?"):
        registry.methods.find("thiers")


@pytest.mark.parametrize(
    ("package", "code", "reason"),
    [
        ("package_that_fails", "1 / 0", "ZeroDivisionError: division by zero"),
        ("package_with_a_number", "7", "TypeError: package_with_a_number:method is not a Method"),
    ],
)
def test_a_package_that_fails_is_named_and_the_others_are_found(
    install: Install, caplog: pytest.LogCaptureFixture, package: str, code: str, reason: str
) -> None:
    install(package, code)
    install(f"beside_{package}", "Method('Theirs')")
    assert registry.methods.find("theirs").name == "Theirs"
    assert f"package {package} is left out: {reason}" in caplog.text
    with pytest.raises(UsageError, match=r"unknown method 'harmolf'; did you mean 'harmofl'\?"):
        registry.methods.find("harmolf")


def test_a_package_cannot_take_the_name_of_another_method(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("package_of_an_impostor", "Method('FedAvg')")
    with pytest.raises(UsageError, match="unknown method"):
        registry.methods.find("theirs")
    assert registry.methods.find("fedavg") is fedavg
    assert "of package package_of_an_impostor is left out: the name 'fedavg' is taken" in caplog.text
