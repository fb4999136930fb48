import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harmofl import register
from harmofl.console import show_methods
from harmofl.errors import UsageError
from harmofl.methods.catalogue import CATALOGUE, fedavg, find
from harmofl.methods.method import Method

NAMES = ["fedavg", "fedprox", "fednova", "fedadam", "fedbn", "moon", "harmofl", "local", "centralized"]


def test_there_are_nine_methods() -> None:
    assert list(CATALOGUE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_method_states_its_idea_and_its_limit_and_its_paper_unless_it_is_a_reference(name: str) -> None:
    method = find(name)
    assert method.idea.endswith(".")
    assert method.limit
    assert bool(method.paper) == (name not in ("local", "centralized"))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg", {}),
        ("fedprox", {"mu": 0.01}),
        ("fednova", {}),
        ("fedadam", {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
        ("fedbn", {}),
        ("moon", {"mu": 1.0, "temperature": 0.5}),
        ("harmofl", {"band": "dc", "decay": 0.1, "schedule": "before-training", "radius": 0.05}),
        ("local", {}),
        ("centralized", {}),
    ],
)
def test_settings_have_the_documented_defaults(name: str, settings: dict[str, object]) -> None:
    assert find(name).settings == settings


def test_only_centralized_pools_the_images() -> None:
    assert [name for name in NAMES if find(name).pooled] == ["centralized"]


@pytest.mark.parametrize("name", ["FedAvg", "fedavg", "FEDAVG"])
def test_names_are_found_in_any_case(name: str) -> None:
    assert find(name) is fedavg


def test_an_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(UsageError, match=r"unknown method 'harmolf'; did you mean 'harmofl'\?") as caught:
        find("harmolf")
    assert all(name in str(caught.value) for name in NAMES)


def test_a_registered_method_is_found_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmofl.methods.catalogue.CATALOGUE", CATALOGUE.copy())
    mine = register(Method("My Method"))
    assert find("my-method") is mine


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put packages where Python finds installed ones, with one method each: a name and the code that makes it."""
    monkeypatch.setattr("harmofl.methods.catalogue.CATALOGUE", CATALOGUE.copy())
    monkeypatch.syspath_prepend(tmp_path)

    def install(package: str, code: str) -> None:
        (tmp_path / f"{package}.py").write_text(f"from harmofl import Method\nmethod = {code}\n")
        about = tmp_path / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[harmofl.methods]\nanything = {package}:method\n")

    return install


Install = Callable[[str, str], None]


def test_a_method_of_an_installed_package_is_found_and_listed(
    install: Install, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    install("package_with_theirs", "Method('Theirs', idea='Nobody knows.')")
    show_methods()
    assert "Nobody knows." in capsys.readouterr().out
    assert find("theirs") is sys.modules["package_with_theirs"].method
    show_methods()
    assert not caplog.records


@pytest.mark.parametrize(
    ("package", "code", "reason"),
    [
        ("package_that_fails", "1 / 0", "ZeroDivisionError: division by zero"),
        ("package_with_a_number", "7", "TypeError: package_with_a_number:method is no Method"),
    ],
)
def test_a_package_that_fails_is_named_and_the_others_are_found(
    install: Install, caplog: pytest.LogCaptureFixture, package: str, code: str, reason: str
) -> None:
    install(package, code)
    install(f"beside_{package}", "Method('Theirs')")
    assert find("theirs").name == "Theirs"
    assert f"package {package} is left out: {reason}" in caplog.text
    with pytest.raises(UsageError, match=r"unknown method 'harmolf'; did you mean 'harmofl'\?"):
        find("harmolf")


def test_a_package_cannot_take_the_name_of_another_method(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("package_of_an_impostor", "Method('FedAvg')")
    with pytest.raises(UsageError, match="unknown method"):
        find("theirs")
    assert find("fedavg") is fedavg
    assert "method 'fedavg' of package package_of_an_impostor is left out: the name is taken" in caplog.text
