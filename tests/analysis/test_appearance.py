"""Statistics of images computed by hand, the plane they are seen in, and what a probe can tell from them."""

import math

import pytest
import torch
from torch import Tensor

from harmofl.analysis.appearance import (
    PERCENTILES,
    RINGS,
    Plane,
    folds_of,
    log_amplitudes,
    probe_site,
    ring_means,
    standardize,
    statistics,
)

PER_CHANNEL = 3 + len(PERCENTILES) + RINGS


def two_levels() -> Tensor:
    """A quarter of the pixels is 1, the rest 0."""
    image = torch.zeros(1, 1, 4, 4)
    image[..., 0, :] = 1
    return image


def test_mean_std_and_skewness_are_those_of_a_coin() -> None:
    # Of a coin that shows 1 with p = ¼: std √(p(1 − p)), skewness (1 − 2p)/std.
    mean, std, skewness = statistics(two_levels())[0, :3].tolist()
    assert mean == pytest.approx(0.25)
    assert std == pytest.approx(math.sqrt(0.1875))
    assert skewness == pytest.approx(0.5 / math.sqrt(0.1875))


def test_percentiles_are_those_of_the_sorted_pixels() -> None:
    image = torch.arange(21.0)[torch.randperm(21)].reshape(1, 1, 3, 7)
    assert statistics(image)[0, 3 : 3 + len(PERCENTILES)].tolist() == pytest.approx([1, 5, 10, 15, 19])


def test_percentiles_of_a_large_image_are_those_of_every_kth_pixel() -> None:
    image = torch.linspace(0, 1, 256 * 256).reshape(1, 1, 256, 256)
    assert statistics(image)[0, 3:8].tolist() == pytest.approx([0.05, 0.25, 0.5, 0.75, 0.95], abs=1e-3)


def test_channels_are_described_one_after_the_other() -> None:
    images = torch.rand(3, 2, 16, 16)
    both = statistics(images)
    assert both.shape == (3, 2 * PER_CHANNEL)
    assert torch.allclose(both[:, PER_CHANNEL:], statistics(images[:, 1:]))


def test_a_flat_image_has_finite_statistics() -> None:
    assert statistics(torch.full((1, 3, 16, 16), 0.3)).isfinite().all()


def test_a_waves_amplitude_lies_in_the_ring_of_its_frequency() -> None:
    # 0.3 + 0.2 cos(2πx/4): a quarter of a cycle per pixel, amplitude 0.1 on either side of zero.
    row = 0.3 + 0.2 * torch.cos(2 * math.pi * torch.arange(16) / 4)
    logarithms = log_amplitudes(row.double().expand(1, 1, 16, 16))[0, 0]
    assert float(logarithms[0, 0]) == pytest.approx(math.log10(0.3))
    assert float(logarithms[0, 4]) == pytest.approx(-1)
    rings = ring_means(10**logarithms, 2)
    # 48 frequencies have 0 < √(fy² + fx²) ≤ ¼, among them both of the wave's, as x = ±4 of 16.
    assert rings[0] == pytest.approx((2 * 0.1 + 46 * 1e-6) / 48)
    assert rings[1] == pytest.approx(1e-6)


def test_what_hardly_varies_is_not_blown_up() -> None:
    values = torch.tensor([[1.0, 0.5], [3.0, 0.5 + 1e-9]], dtype=torch.float64)
    assert standardize(values, values)[:, 0].tolist() == [-1, 1]
    assert standardize(values, values)[:, 1].abs().max() < 1e-4


def test_a_plane_holds_what_lies_in_it_and_always_faces_the_same_way() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    values = torch.stack([first, 2 * first, -first, second], dim=1)
    plane = Plane.of(values)
    places = plane.places(values)
    assert sum(plane.shares) == pytest.approx(1)
    lengths = standardize(values, values).norm(dim=1)
    assert torch.allclose(places.norm(dim=1), lengths)
    assert torch.allclose(Plane.of(values.flip(0)).places(values), places)
    for axis in plane.axes.T:
        assert axis[axis.abs().argmax()] > 0


def clouds(distance: float, sites: int = 3, images: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics of sites whose means lie a distance apart, two images a patient."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.arange(sites).repeat_interleave(images)
    values = torch.randn(len(numbers), 4, generator=generator, dtype=torch.float64)
    values[:, 0] += distance * numbers
    return values, numbers, torch.arange(images).repeat(sites) // 2


def test_a_probe_tells_separate_sites_apart() -> None:
    probe = probe_site(*clouds(10.0))
    assert probe.accuracy > 0.98
    assert probe.chance == pytest.approx(1 / 3)
    assert len(probe.per_site) == 3
    assert probe.folds == 5


def test_a_probe_is_at_chance_where_sites_are_alike() -> None:
    probe = probe_site(*clouds(0.0, images=200))
    assert probe.accuracy == pytest.approx(1 / 3, abs=0.06)


def test_a_probe_learns_nothing_from_rounding() -> None:
    values, sites, groups = clouds(0.0, images=100)
    values[:, 1] = 0.5 + 1e-12 * sites
    assert probe_site(values, sites, groups).accuracy < 0.45


def test_a_large_site_does_not_count_more() -> None:
    values, sites, groups = clouds(0.0, sites=2, images=300)
    few = (sites == 0) | (groups < 15)
    probe = probe_site(values[few], sites[few], groups[few])
    assert probe.accuracy < 0.62  # always guessing the large one would be right in 91 % of the images


def test_patients_that_look_alike_are_never_on_both_sides() -> None:
    # Each patient's images are copies: with one on each side a probe in enough dimensions would know them again.
    generator = torch.Generator().manual_seed(2)
    patients = torch.randn(20, 15, generator=generator, dtype=torch.float64)
    values, sites = patients.repeat_interleave(4, dim=0), torch.arange(2).repeat_interleave(40)
    groups = torch.arange(10).repeat_interleave(4).repeat(2)
    torn = probe_site(values, sites, torch.arange(40).repeat(2))
    together = probe_site(values, sites, groups)
    assert torn.accuracy > 0.9
    assert together.accuracy < 0.75


def test_folds_follow_the_site_with_fewest_patients() -> None:
    sites, groups = torch.tensor([0] * 6 + [1] * 6), torch.tensor([0, 0, 1, 1, 2, 2, 7, 7, 7, 9, 9, 9])
    folds = folds_of(sites, groups, seed=0)
    assert set(folds.tolist()) == {0, 1}
    for site, group in zip(sites, groups, strict=True):
        assert len(set(folds[(sites == site) & (groups == group)].tolist())) == 1


def test_a_site_with_one_patient_deals_out_its_images() -> None:
    sites, groups = torch.tensor([0] * 5 + [1] * 5), torch.tensor([3] * 5 + [0, 1, 2, 3, 4])
    assert sorted(folds_of(sites, groups, seed=0)[:5].tolist()) == [0, 1, 2, 3, 4]
