from dataclasses import dataclass, field, replace

import pytest
from torch import nn

from harmofl.errors import UsageError
from harmofl.methods.catalogue import fedavg, fedprox, harmofl
from harmofl.methods.harmonizers import NormalizeAmplitude
from harmofl.methods.method import Method
from harmofl.methods.penalties import ModelContrast, Proximity
from harmofl.methods.server_rules import AdaptiveMoments
from harmofl.methods.steps import PerturbedDescent, descend


def test_settings_are_the_fields_of_all_pieces() -> None:
    method = Method(
        "all",
        harmonizer=NormalizeAmplitude(band="full", decay=0.2, schedule="every-round"),
        penalties=(Proximity(mu=3),),
        step=PerturbedDescent(radius=0.5),
        server_rule=AdaptiveMoments(beta1=0.1, beta2=0.2, tau=0.3),
    )
    assert method.settings == {
        "spacing": None,
        "band": "full",
        "decay": 0.2,
        "schedule": "every-round",
        "mu": 3,
        "radius": 0.5,
        "radius_relative": None,
        "reuse": 1,
        "ascent_fraction": 1.0,
        "beta1": 0.1,
        "beta2": 0.2,
        "tau": 0.3,
    }


def test_a_method_of_default_pieces_has_no_settings() -> None:
    assert Method("plain").settings == {}


def test_with_settings_changes_each_setting_in_its_piece_and_leaves_the_original_alone() -> None:
    changed = harmofl.with_settings(radius=0.5, band="full")
    assert changed.step == PerturbedDescent(radius=0.5)
    assert changed.harmonizer == NormalizeAmplitude(band="full", decay=0.1, schedule="before-training")
    assert harmofl.settings["radius"] == 0.05
    assert harmofl.settings["band"] == "dc"
    assert replace(changed, step=harmofl.step, harmonizer=harmofl.harmonizer) == harmofl


def test_a_relative_radius_takes_the_place_of_an_absolute_one_and_back() -> None:
    relative = harmofl.with_settings(radius_relative=0.001)
    assert relative.step == PerturbedDescent(radius_relative=0.001)
    assert (relative.settings["radius"], relative.settings["radius_relative"]) == (None, 0.001)
    assert relative.with_settings(radius=0.5).step == PerturbedDescent(radius=0.5)


def test_with_settings_reaches_every_penalty() -> None:
    @dataclass(frozen=True)
    class Decay:
        strength: float = 0.0

    method = Method("two", penalties=(Proximity(), Decay()))  # type: ignore[arg-type]
    changed = method.with_settings(mu=0.5, strength=2.0)
    assert changed.penalties == (Proximity(mu=0.5), Decay(strength=2.0))


@dataclass(frozen=True)
class FirstEntries:
    """Shares the first so many entries."""

    entries: int = 3

    def __call__(self, network: nn.Module) -> list[str]:
        return list(network.state_dict())[: self.entries]


def test_what_a_method_shares_may_have_settings_too() -> None:
    method = Method("some", shares=FirstEntries(1))
    assert method.settings == {"entries": 1}
    changed = method.with_settings(entries=2)
    assert changed.shares(nn.BatchNorm1d(3)) == ["weight", "bias"]
    assert method.shares(nn.BatchNorm1d(3)) == ["weight"]


def test_usual_settings_are_those_at_the_default_of_their_class() -> None:
    of_harmonizer, of_step = {"spacing", "band", "decay", "schedule"}, {"reuse", "ascent_fraction"}
    assert harmofl.usual_settings == of_harmonizer | of_step | {"radius", "radius_relative"}
    changed = replace(harmofl, harmonizer=NormalizeAmplitude(band="full"), shares=FirstEntries())
    assert changed.usual_settings == {"spacing", "decay", "schedule", "radius", "radius_relative", "entries"} | of_step
    absolute = replace(harmofl, step=PerturbedDescent(radius=0.1))
    assert absolute.usual_settings == of_harmonizer | of_step  # the radius' alternative is not at its default

    @dataclass(frozen=True)
    class Weighted:
        strength: float
        layers: list[int] = field(default_factory=lambda: [1, 2])

    method = Method("weighted", penalties=(Weighted(0.5),))  # type: ignore[arg-type]
    assert method.usual_settings == {"layers"}


def test_an_unknown_setting_suggests_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"unknown setting of HarmoFL 'method\.radios'; did you mean 'method\.radius'\?"
    ):
        harmofl.with_settings(radios=1)


def test_two_pieces_with_the_same_setting_are_refused() -> None:
    method = Method("Both", penalties=(Proximity(), ModelContrast()))
    with pytest.raises(UsageError, match="two pieces of Both have a setting 'mu'"):
        _ = method.settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"radius": 0.1, "radius_relative": 0.2},
            r"^method\.radius = 0\.1, radius_relative = 0\.2: give one of the two$",
        ),
        ({"radius": -1}, r"method\.radius = -1: must be greater than or equal to 0"),
        ({"band": "low"}, r"method\.band = 'low': must be 'none', 'dc', 'full' or a radius above 0 and up to 0\.71"),
        ({"band": 0.9}, r"method\.band = 0\.9: must be 'none', 'dc', 'full' or a radius above 0 and up to 0\.71"),
        ({"decay": 2}, r"method\.decay = 2: must be less than or equal to 1"),
        (
            {"schedule": "never"},
            r"method\.schedule = 'never': must be 'before-training', 'first-round' or 'every-round'",
        ),
    ],
)
def test_an_invalid_value_is_refused_with_its_name_and_what_is_allowed(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        harmofl.with_settings(**settings)


def test_an_ablation_is_one_line() -> None:
    ablation = replace(harmofl, step=descend)
    assert ablation.settings.keys() == {"spacing", "band", "decay", "schedule"}


def test_the_key_is_the_name_in_lower_case_without_spaces() -> None:
    assert Method("My Method").key == "my-method"
    assert fedprox.key == "fedprox"


def test_pieces_default_to_those_of_fedavg() -> None:
    default = Method("FedAvg")
    assert replace(fedavg, paper="", idea="", limit="") == default
