"""What pieces measure, made private: bounds and noise worked by hand, and what a run says it has spent."""

import math
from pathlib import Path

import pytest
import torch

from harmofl import registry
from harmofl.errors import RunError
from harmofl.federation.accounting import Release, epsilon, total_epsilon
from harmofl.federation.messages import Reply, Request
from harmofl.federation.noise import SeededNoise
from harmofl.federation.privacy import site_releases
from harmofl.federation.private_measurements import hide, noise_for_images, noise_for_sites, senders
from harmofl.inference.card import describe_privacy
from harmofl.methods.amplitude_alignment import AmplitudeAlignment
from harmofl.methods.amplitude_normalization import AmplitudeNormalization
from harmofl.methods.bound import Bound
from harmofl.methods.layers import Harmonizer
from harmofl.methods.site_normalization import SiteNormalization
from harmofl.settings import PrivacySettings, resolve
from runs import SITES, Altered, records, serve, tiny, train

SHAPE = (3, 6, 5)
LAYERS: list[Harmonizer] = [
    *(AmplitudeNormalization(SHAPE, band) for band in ("none", "dc", 0.3, "full")),
    AmplitudeAlignment(SHAPE, "full"),
    SiteNormalization(SHAPE),
]


def distance(layer: Harmonizer, images: torch.Tensor) -> float:
    """How far what a layer measures of images is from the centre of its bound."""
    layer.measure([images])
    bound, measured = layer.bound(), layer.measurement()
    assert bound is not None
    assert measured.keys() == bound.centre.keys()
    return math.sqrt(sum(float((measured[name] - bound.centre[name]).square().sum()) for name in measured))


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_no_image_leaves_the_bound_and_grey_is_its_centre(layer: Harmonizer) -> None:
    bound, generator = layer.bound(), torch.Generator().manual_seed(0)
    assert bound is not None
    assert distance(layer, torch.full((2, *SHAPE), 0.5)) == pytest.approx(0.0, abs=1e-4)
    for _ in range(20):
        images = torch.rand(1, *SHAPE, generator=generator)
        for extreme in (images, images.round(), torch.zeros_like(images), torch.ones_like(images)):
            assert distance(layer, extreme) <= bound.radius * (1 + 1e-6)


@pytest.mark.parametrize(
    ("layer", "radius"),
    [
        (AmplitudeNormalization(SHAPE, "dc"), 15 * math.sqrt(3)),  # 30 pixels: their mean times 30 is from 0 to 30
        (AmplitudeNormalization(SHAPE, "full"), 15 * math.sqrt(3)),  # no more by Parseval's theorem
        (SiteNormalization(SHAPE), math.sqrt(3) / 2),
    ],
    ids=repr,
)
def test_bounds_by_hand_are_reached_by_black_images(layer: Harmonizer, radius: float) -> None:
    bound = layer.bound()
    assert bound is not None
    assert bound.radius == pytest.approx(radius)
    assert distance(layer, torch.zeros(1, *SHAPE)) == pytest.approx(radius)


def test_a_harmonizer_that_states_no_bound_has_none() -> None:
    assert Harmonizer().bound() is None


# --- noise ---------------------------------------------------------------------------------------------------------


def chosen(method: str, **more: object):  # type: ignore[no-untyped-def]
    overrides = tiny(**({"data__size": 16} | more))
    settings, found = resolve("histology", method, "smoke", overrides=overrides)
    return settings, found, registry.tasks.find("histology").build_model(settings, found)


def test_the_deviation_of_a_sites_noise_by_hand() -> None:
    _, method, model = chosen("harmofl")
    radius = 16 * 16 / 2 * math.sqrt(3)
    for sharing, expected in ((1, 2 * radius), (4, radius)):  # four sites share it: each adds half the deviation
        (found,) = noise_for_sites(PrivacySettings(site_noise=2), senders(method, model), model, sharing).values()
        assert found[1] == pytest.approx(expected)
    own = PrivacySettings(site_noise=2, measurement_noise=0.5)
    (found,) = noise_for_sites(own, senders(method, model), model, 1).values()
    assert found[1] == pytest.approx(0.5 * radius)


def test_what_is_handed_on_to_every_site_gets_the_whole_noise() -> None:
    _, method, model = chosen("fedrdn")
    (found,) = noise_for_sites(PrivacySettings(site_noise=2), senders(method, model), model, 4).values()
    assert found[1] == pytest.approx(2 * math.sqrt(3) / 2)


def test_the_deviation_of_an_images_noise_by_hand() -> None:
    """One of 50 images moves a mean in [0, 1] by 1/50 at most, and those of three channels by √3/50."""
    _, method, model = chosen("fedrdn")
    (found,) = noise_for_images(PrivacySettings(image_noise=3), senders(method, model), model, 50).values()
    assert found[1] == pytest.approx(3 * math.sqrt(3) / 50)


def test_what_is_sent_is_brought_into_the_bound_and_gets_noise_of_the_deviation() -> None:
    bound = Bound({"mean": torch.full((2,), 0.5)}, radius=1.0)
    noise = SeededNoise(0)
    far = {"piece.mean": torch.tensor([3.5, 4.5]), "other.mean": torch.ones(1)}  # (3, 4) from the centre: 5 away
    found = hide(far, {"piece": (bound, 0.0)}, noise)
    torch.testing.assert_close(found["piece.mean"], torch.tensor([0.5 + 3 / 5, 0.5 + 4 / 5]))
    assert found["other.mean"] is far["other.mean"]
    near = {"piece.mean": torch.full((10_000,), 0.5)}
    found = hide(near, {"piece": (Bound({"mean": torch.full((10_000,), 0.5)}, 1.0), 0.3)}, noise)
    assert float(found["piece.mean"].std()) == pytest.approx(0.3, rel=0.03)
    assert float(found["piece.mean"].mean()) == pytest.approx(0.5, abs=0.015)
    assert hide({}, {"piece": (bound, 0.3)}, noise) == {}


def test_no_band_sends_nothing_that_noise_would_have_to_cover() -> None:
    _, method, model = chosen("harmofl", method__band="none")
    assert senders(method, model) == {}


# --- what is counted -----------------------------------------------------------------------------------------------


def test_divergences_add_up_by_hand() -> None:
    """Of Gaussian mechanisms without sampling α/(2σ²) adds up: one of noise 1 and four of noise 2 are one of √½."""
    together = total_epsilon([Release(1.0, 1), Release(2.0, 4)], 1e-5)
    assert together == pytest.approx(epsilon(math.sqrt(0.5), 1, 1e-5))
    assert total_epsilon([Release(1.0, 1), Release(0.0, 0)], 1e-5) == epsilon(1.0, 1, 1e-5)
    assert total_epsilon([Release(1.0, 1), Release(0.0, 1)], 1e-5) == math.inf
    assert total_epsilon([], 1e-5) == 0.0


@pytest.mark.parametrize(
    ("schedule", "times"), [("before-training", [1, 1, 1]), ("first-round", [1, 1, 1]), ("every-round", [1, 2, 3])]
)
def test_every_measurement_that_leaves_is_counted(schedule: str, times: list[int]) -> None:
    settings, method, model = chosen("harmofl", method__schedule=schedule, privacy__site_level="central")
    for number, expected in zip((1, 2, 3), times, strict=True):
        updates, measured = site_releases(settings, method, senders(method, model), number)
        assert (updates.steps, measured.steps) == (number, expected)


@pytest.mark.parametrize("method", ["harmofl", "fedrdn"])
def test_a_private_run_counts_its_measurements_and_epsilon_grows(tmp_path: Path, method: str) -> None:
    more = {"privacy__site_level": "central", "privacy__site_noise": 2.0, "privacy__measurement_noise": 3.0}
    summary = train(tmp_path, method, **more, privacy__site_clip=0.1, rounds=2)
    expected = [total_epsilon([Release(2.0, number), Release(3.0, 1)], 1e-5) for number in (1, 2)]
    spent = [each["epsilon"] for each in records(tmp_path) if each["site"] == "server" and "epsilon" in each]
    assert spent == expected
    site = summary["privacy"]["site"]
    assert site["epsilon"] == expected[-1] > epsilon(2.0, 2, 1e-5)
    assert site["measurements"] == {"times": 1, "noise": 3.0}
    (line,) = describe_privacy(summary)
    assert f"2 rounds of ε = {epsilon(2.0, 1, 1e-5):.3g} each, 1 measurement of images with noise 3" in line


def test_measurements_leave_a_site_with_noise(tmp_path: Path) -> None:
    plain, private = (
        serve(tmp_path / name, method="harmofl", rounds=1, **more).passed
        for name, more in (
            ("plain", {}),
            ("private", {"privacy__site_level": "local", "privacy__measurement_noise": 1e-3}),
        )
    )
    deviation = 1e-3 * 32 * 32 / 2 * math.sqrt(3)
    measured = [
        {reply.site: reply.sent["harmonizer.amplitude"] for request, reply in passed if request.kind == "measure"}
        for passed in (plain, private)
    ]
    assert measured[0].keys() == set(SITES)
    noise = torch.cat([(measured[1][site] - measured[0][site]).flatten() for site in SITES])
    assert 0.4 * deviation < float(noise.square().mean().sqrt()) < 1.8 * deviation  # of fifteen numbers


def test_images_are_hidden_in_measurements_too(tmp_path: Path) -> None:
    more = {"privacy__image_level": True, "model__norm": "group", "rounds": 1}
    summary = train(tmp_path, "harmofl", **more, method__radius=0.0, privacy__measurement_noise=4.0)
    (trained,) = [each for each in records(tmp_path) if each["phase"] == "train" and each["site"] == SITES[0]]
    images, steps = trained["num_examples"], trained["num_steps"]
    expected = total_epsilon([Release(1.0, steps, 8 / images), Release(4.0, 1)], 1e-5)
    assert trained["epsilon"] == expected > epsilon(1.0, steps, 1e-5, 8 / images)
    assert summary["privacy"]["image"]["epsilon"][SITES[0]] == expected
    assert "1 measurement of images with noise 4" in describe_privacy(summary)[0]


def test_a_round_needs_as_many_sites_as_share_its_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five sites three share the noise; that only three came does not make two of them enough."""

    def lose(request: Request, reply: Reply) -> Reply:
        return Reply(reply.site, error="no answer") if reply.site == SITES[0] and request.kind == "train" else reply

    monkeypatch.setattr(Altered, "sites", lambda self, minimum, timeout: SITES[:minimum])
    with pytest.raises(RunError, match="2 of 3 sites gave a usable answer, 3 are needed"):
        serve(tmp_path, lose, rounds=1, privacy__site_level="central")
