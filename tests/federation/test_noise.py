"""Noise: what a simulation repeats, and what only a hospital can."""

import os
from pathlib import Path

import pytest
import torch
from scipy.stats import kstest

from harmofl.federation.messages import Request
from harmofl.federation.noise import KEY, Noise, SecretNoise, open_noise

LIKE = torch.zeros(50, 41)


def request(number: int = 1, value: float = 0.0) -> Request:
    return Request("run", "train", number, {"w": torch.tensor([value])})


def draw(noise: Noise, deviation: float = 1.0) -> torch.Tensor:
    return noise.normal(LIKE, deviation)


@pytest.mark.parametrize("seed", [0, None])
def test_it_is_normal_with_the_deviation_asked_for(tmp_path: Path, seed: int | None) -> None:
    noise = open_noise(seed, tmp_path, "A", request(), "image")
    drawn = noise.normal(torch.zeros(201, 99), 3.0)
    assert drawn.dtype == torch.float64
    assert drawn.shape == (201, 99)
    assert kstest(drawn.flatten().numpy(), "norm", args=(0, 3.0)).pvalue > 0.001
    again = noise.normal(torch.zeros(201, 99), 3.0)
    assert abs(float((drawn * again).mean())) < 0.3  # independent; the mean product has a deviation of 0.06


def test_in_a_simulation_it_follows_from_seed_round_site_and_purpose(tmp_path: Path) -> None:
    first = draw(open_noise(0, tmp_path, "A", request(), "image"))
    assert torch.equal(first, draw(open_noise(0, tmp_path, "A", request(), "image")))
    others = [(1, "A", 1, "image"), (0, "B", 1, "image"), (0, "A", 2, "image"), (0, "A", 1, "update")]
    for seed, site, number, purpose in others:
        assert not torch.equal(first, draw(open_noise(seed, tmp_path, site, request(number), purpose)))
    assert not list(tmp_path.iterdir())


def test_at_a_hospital_it_comes_from_a_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    first = draw(open_noise(None, here, "A", request(), "image"))
    assert torch.equal(
        first, draw(open_noise(None, here, "A", request(), "image"))
    )  # a repeated round tells nothing new
    assert not torch.equal(first, draw(open_noise(None, there, "A", request(), "image")))
    assert not torch.equal(first, draw(open_noise(None, here, "A", request(2), "image")))
    assert not torch.equal(first, draw(open_noise(None, here, "A", request(1, 1.0), "image")))  # another model, too
    assert (here / KEY).stat().st_mode & 0o777 == 0o600
    assert len((here / KEY).read_bytes()) == 32


def test_nobody_else_can_read_the_key_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be killed right after the file has its name."""
    modes: list[int] = []
    usual = os.replace

    def note(source: str, target: Path) -> None:
        modes.append(os.stat(source).st_mode & 0o777)
        usual(source, target)

    monkeypatch.setattr(os, "replace", note)
    open_noise(None, tmp_path, "A", request(), "image")
    assert modes == [0o600]


def test_a_damaged_key_is_an_error(tmp_path: Path) -> None:
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(ValueError, match=r"noise\.key: 5 bytes, not 32"):
        open_noise(None, tmp_path, "A", request(), "image")


def test_seeds_are_as_secret_as_the_noise() -> None:
    assert SecretNoise(b"a" * 32, "place").seed() == SecretNoise(b"a" * 32, "place").seed()
    assert SecretNoise(b"a" * 32, "place").seed() != SecretNoise(b"b" * 32, "place").seed()
