import pytest

from harmofl import registry

PAPER = ["fedavg", "fedprox", "fednova", "fedadam", "fedbn", "moon", "harmofl"]
NAMES = registry.methods.names()


def test_the_papers_methods_come_first_and_the_references_last() -> None:
    assert NAMES[:7] == PAPER
    assert NAMES[-2:] == ["local", "centralized"]


def test_a_method_is_found_by_its_own_key() -> None:
    assert all(registry.methods.find(name).key == name for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_states_its_idea_and_its_limit_and_its_paper_unless_it_is_a_reference(name: str) -> None:
    method = registry.methods.find(name)
    assert method.idea.endswith(".")
    assert method.limit
    assert bool(method.paper) == (name not in ("local", "centralized"))


EXACT = {"radius_relative": None, "reuse": 1, "ascent_fraction": 1.0}
"""Of the perturbed step, beside its radius."""


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg", {}),
        ("fedprox", {"mu": 0.01}),
        ("fednova", {}),
        ("fedadam", {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
        ("fedbn", {}),
        ("moon", {"mu": 1.0, "temperature": 0.5}),
        (
            "harmofl",
            {
                "spacing": None,
                "band": "dc",
                "decay": 0.1,
                "schedule": "before-training",
                "radius": 0.05,
            }
            | EXACT,
        ),
        ("fedavgm", {"server_momentum": 0.9}),
        ("feddyn", {"alpha": 0.01}),
        ("fedrdn", {}),
        ("fixbn", {"exploration": 0.5}),
        ("sitealign", {"band": "full", "max_gain": 10.0, "radius": 0.0} | EXACT),
        ("trimmed-mean", {"trimmed": 0.2}),
        ("krum", {"outliers": 1}),
        ("multi-krum", {"outliers": 1}),
        ("geometric-median", {"iterations": 32}),
        ("momentum-sam", {"radius": 0.05, "radius_relative": None}),
        ("fedlesam", {"radius": 0.05, "radius_relative": None}),
        ("fedasam", {"adaptive_radius": 0.5, "offset": 0.01}),
        ("ditto", {"pull": 1.0}),
        ("local", {}),
        ("centralized", {}),
    ],
)
def test_settings_have_the_documented_defaults(name: str, settings: dict[str, object]) -> None:
    assert registry.methods.find(name).settings == settings


def test_only_centralized_pools_the_images() -> None:
    assert [name for name in NAMES if registry.methods.find(name).pooled] == ["centralized"]
