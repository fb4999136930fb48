import pytest

from harmofl import register
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


def test_a_method_of_an_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Method("Theirs")

    class Entry:
        def load(self) -> Method:
            return theirs

    monkeypatch.setattr("harmofl.methods.catalogue.CATALOGUE", CATALOGUE.copy())
    monkeypatch.setattr("harmofl.methods.catalogue.entry_points", lambda group: [Entry()])
    assert find("theirs") is theirs
