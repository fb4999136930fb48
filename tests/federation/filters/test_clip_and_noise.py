"""Updates shortened and made noisy: by hand, in the limit, and what does not fit."""

import json
import math
from pathlib import Path

import pytest
import torch

from harmofl.errors import UsageError
from harmofl.federation.accounting import epsilon
from harmofl.federation.filters.clip_and_noise import ClipAndNoise
from harmofl.federation.filters.filter import Departure
from harmofl.federation.messages import Reply, Request
from harmofl.federation.privacy import most_rounds_asked, site_deviation
from harmofl.inference.card import describe_privacy
from harmofl.settings import resolve
from runs import differences, equal, records, stop_after_round, tiny, train, weights

START = {"w": torch.tensor([1.0, 1.0]), "var": torch.tensor([0.5]), "num_batches_tracked": torch.tensor(3)}
TRAINED = {"w": torch.tensor([4.0, 1.0]), "var": torch.tensor([4.5]), "num_batches_tracked": torch.tensor(7)}
"""Moved by (3, 0) and 4: by 5 in all."""


def leave(each: ClipAndNoise, seed: int | None = 0, folder: Path = Path()) -> Reply:
    departure = Departure("A", Request("run", "train", 1, START), seed, folder)
    return each.leave(Reply("A", TRAINED), departure)


def test_an_update_is_shortened_to_the_clip_by_hand() -> None:
    found = leave(ClipAndNoise(clip=1.0, deviation=0.0)).state
    torch.testing.assert_close(found["w"], torch.tensor([1 + 3 / 5, 1.0]))
    torch.testing.assert_close(found["var"], torch.tensor([0.5 + 4 / 5]))
    assert found["num_batches_tracked"] == 7  # tells no more than the number of steps, which travels anyway


def test_a_short_update_without_noise_is_the_same_reply() -> None:
    assert leave(ClipAndNoise(clip=5.0, deviation=0.0)).state is TRAINED


def test_noise_has_the_deviation_asked_for_and_spares_no_floating_entry() -> None:
    start = {"w": torch.zeros(100, 100), "mean": torch.zeros(10_000)}
    departure = Departure("A", Request("run", "train", 1, start), 0, Path())
    found = ClipAndNoise(clip=1.0, deviation=0.3).leave(Reply("A", start), departure).state
    for tensor in found.values():
        assert float(tensor.std()) == pytest.approx(0.3, rel=0.03)
        assert abs(float(tensor.mean())) < 0.015


def test_a_variance_never_becomes_negative() -> None:
    drawn = [
        float(ClipAndNoise(0.1, 5.0, frozenset({"var"})).leave(
            Reply("A", TRAINED), Departure("A", Request("run", "train", number, START), 0, Path())
        ).state["var"])
        for number in range(20)
    ]  # fmt: skip
    assert min(drawn) == 0.0
    assert max(drawn) > 0.0


def test_a_hospitals_noise_is_its_own(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    noisy = ClipAndNoise(1.0, 1.0)
    first, second = (leave(noisy, seed=None, folder=folder).state["w"] for folder in folders)
    assert not torch.equal(first, second)
    assert not torch.equal(first, leave(noisy, seed=0).state["w"])
    assert torch.equal(first, leave(noisy, seed=None, folder=folders[0]).state["w"])


# --- what a site adds, and what does not fit -----------------------------------------------------------------------


def settings_of(method: str = "fedavg", **more: object):  # type: ignore[no-untyped-def]
    return resolve("histology", method, "smoke", overrides=tiny(**({"privacy__site_level": "central"} | more)))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"privacy__site_level": "local"}, 2 * 0.5),
        ({"federation__quorum": 1.0}, 2 * 0.5 / math.sqrt(5)),
        ({"federation__quorum": 0.5}, 2 * 0.5 / math.sqrt(3)),  # three of five make a round
        ({"federation__quorum": 0.5, "federation__participation": 0.4}, 2 * 0.5 / math.sqrt(1)),  # one of two
    ],
)
def test_each_site_adds_its_share_of_the_noise(more: dict[str, object], expected: float) -> None:
    settings, method = settings_of(privacy__site_clip=0.5, privacy__site_noise=2.0, **more)
    assert site_deviation(settings, method) == pytest.approx(expected)


def test_rounds_count_for_the_site_that_is_asked_most() -> None:
    settings, method = settings_of()
    assert most_rounds_asked(settings, method, 7) == 7
    settings, method = settings_of(federation__participation=0.2)
    assert 2 <= most_rounds_asked(settings, method, 10) < 10  # ten draws of one in five


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("scaffold", {}, "SCAFFOLD also sends step.*no known bound.*choose .* fedavg"),
        ("local", {}, "local sends no site updates"),
        ("centralized", {}, "centralized sends no site updates"),
        ("fednova", {}, "FedNova does not combine updates by a plain sum"),
        ("median", {}, "Median does not combine updates by a plain sum"),
        ("fedavg", {"federation__weights": "examples"}, "federation.weights = 'examples' must be 'uniform'"),
        ("fedavg", {"federation__clip_updates": 2.0}, "federation.clip_updates = 2 must be unset"),
    ],
)
def test_what_noise_does_not_cover_is_refused_before_training(
    tmp_path: Path, method: str, more: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        train(tmp_path / "run", method, privacy__site_level="central", **more)
    assert not (tmp_path / "run").exists()


# --- in a run ------------------------------------------------------------------------------------------------------


def test_without_noise_and_with_a_long_clip_the_run_is_the_plain_one(tmp_path: Path) -> None:
    train(tmp_path / "plain")
    train(tmp_path / "private", privacy__site_level="central", privacy__site_clip=1e30, privacy__site_noise=0.0)
    assert equal(weights(tmp_path / "plain"), weights(tmp_path / "private"))
    site = json.loads((tmp_path / "private" / "summary.json").read_text())["privacy"]["site"]
    assert site["epsilon"] is None


def test_a_private_run_says_what_it_spent_and_resumes_to_the_bit(tmp_path: Path) -> None:
    more = {"privacy__site_level": "central", "privacy__site_clip": 0.1, "privacy__site_noise": 2.0, "rounds": 3}
    summary = train(tmp_path / "whole", **more)
    site = summary["privacy"]["site"]
    assert site["epsilon"] == epsilon(2.0, 3, 1e-5)
    assert site["epsilon_of_a_round"] == epsilon(2.0, 1, 1e-5)
    spent = [each["epsilon"] for each in records(tmp_path / "whole") if each["site"] == "server" and "epsilon" in each]
    assert spent == [epsilon(2.0, number, 1e-5) for number in (1, 2, 3)]
    (line,) = describe_privacy(summary)
    assert line.startswith(f"site level: ε = {site['epsilon']:.3g} at δ = 1e-05 (clip 0.1, noise 2, 3 rounds of")

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", watch=stop_after_round(1), **more)
    train(tmp_path / "resumed", resume=True, **more)
    assert differences(tmp_path / "whole", tmp_path / "resumed") == []
