"""The histology and nuclei phantoms: what they promise about bits, masks, labels and appearance."""

from __future__ import annotations

import math
from dataclasses import astuple
from types import ModuleType

import pytest
import torch

from harmofl.data.phantoms import histology, nuclei, stain, tissue

PHANTOMS = pytest.mark.parametrize("phantom", [histology, nuclei], ids=["histology", "nuclei"])


def nucleus(row: float, column: float, radius: float) -> tissue.Nuclei:
    one = torch.ones(1, 1)
    return tissue.Nuclei(
        centers=torch.tensor([[[row, column]]]),
        radius=radius * one,
        elongation=one,
        angle=0 * one,
        waves=torch.zeros(1, 1, len(tissue.WAVES), 2),
        darkness=one,
        paleness=0 * one,
        defocused=torch.zeros(1, 1, dtype=torch.bool),
    )


def plain(blur: float = 0.2, noise: float = 0.0) -> stain.Appearance:
    return stain.Appearance((0.6, 0.7, 0.4), (0.1, 0.9, 0.4), 1.5, 0.8, (1.0, 0.9, 0.8), 1.0, blur, noise)


@PHANTOMS
@pytest.mark.parametrize("size", [48, 64, 96])
def test_images_have_the_promised_shape_type_and_range(phantom: ModuleType, size: int) -> None:
    data = phantom.make_site(phantom.SITES[0], 10, size, 1.0, 0)
    assert data.images.shape == (10, 3, size, size)
    assert data.images.dtype == torch.float32
    assert data.targets.dtype == data.groups.dtype == torch.int64
    assert 0 <= data.images.min() < data.images.max() <= 1


@PHANTOMS
def test_same_arguments_give_the_same_bits(phantom: ModuleType) -> None:
    first, second = (phantom.make_site(phantom.SITES[1], 6, 48, 1.0, 3) for _ in range(2))
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.targets, second.targets)


@PHANTOMS
def test_number_of_threads_neither_changes_the_bits_nor_is_changed(phantom: ModuleType) -> None:
    images = []
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            images.append(phantom.make_site(phantom.SITES[0], 20, 64, 1.0, 0).images)
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*images)


@PHANTOMS
def test_drawing_leaves_the_global_random_state_alone(phantom: ModuleType) -> None:
    before = torch.get_rng_state()
    phantom.make_site(phantom.SITES[0], 2, 48, 1.0, 0)
    assert torch.equal(before, torch.get_rng_state())


@PHANTOMS
def test_seeds_and_sites_give_different_images(phantom: ModuleType) -> None:
    one, other_seed, other_site = (
        phantom.make_site(phantom.SITES[site], 2, 48, 0.0, seed).images for site, seed in ((0, 0), (0, 1), (1, 0))
    )
    assert not torch.equal(one, other_seed)
    assert not torch.equal(one, other_site)


@PHANTOMS
def test_unknown_site_is_refused_with_the_known_ones_named(phantom: ModuleType) -> None:
    with pytest.raises(ValueError, match=phantom.SITES[-1]):
        phantom.make_site("nowhere", 2, 48, 1.0, 0)


def test_misspelt_site_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match="Did you mean 'hospital-3'"):
        histology.make_site("hospitl-3", 2, 48, 1.0, 0)


@PHANTOMS
def test_without_shift_all_sites_look_alike(phantom: ModuleType) -> None:
    looks = {stain.shifted_appearance(phantom.APPEARANCES, site, 0.0) for site in phantom.SITES}
    assert len(looks) == 1


@PHANTOMS
def test_at_shift_one_a_site_looks_as_measured(phantom: ModuleType) -> None:
    for site, measured in phantom.APPEARANCES.items():
        look = stain.shifted_appearance(phantom.APPEARANCES, site, 1.0)
        # The table is rounded to two digits, so its vectors are not exactly of unit length.
        for drawn, figure in zip(astuple(look), astuple(measured), strict=True):
            assert drawn == pytest.approx(figure, abs=0.01)


@PHANTOMS
def test_larger_shift_moves_the_sites_further_apart(phantom: ModuleType) -> None:
    def spread(shift: float) -> float:
        means = [phantom.make_site(site, 24, 48, shift, 0).images.mean((0, 2, 3)) for site in phantom.SITES]
        return float(torch.stack(means).std(0).mean())

    assert 3 * spread(0.0) < spread(1.0) < spread(2.0)


@PHANTOMS
def test_exaggerated_appearance_stays_physical(phantom: ModuleType) -> None:
    for site in phantom.SITES:
        look = stain.shifted_appearance(phantom.APPEARANCES, site, 5.0)
        for vector in (look.hematoxylin, look.eosin):
            assert min(vector) > 0
            assert math.hypot(*vector) == pytest.approx(1)
        assert 0 < look.hematoxylin_strength <= stain.STRENGTH_LIMITS[1]
        assert max(look.background) <= 1


def test_content_of_the_nuclei_sites_is_alike_without_shift_and_measured_at_one() -> None:
    assert len({nuclei.shifted_content(site, 0.0) for site in nuclei.SITES}) == 1
    for site, measured in nuclei.CONTENTS.items():
        assert astuple(nuclei.shifted_content(site, 1.0)) == pytest.approx(astuple(measured), rel=1e-4)


def test_half_of_the_histology_images_are_tumor_and_each_patient_has_both() -> None:
    data = histology.make_site("hospital-2", 40, 48, 1.0, 0)
    assert data.targets.sum() == 20
    assert len(data.groups.unique()) == 5
    for patient in data.groups.unique():
        assert set(data.targets[data.groups == patient].tolist()) == {0, 1}


def test_tumor_nuclei_are_larger_and_paler_on_average() -> None:
    labels = torch.arange(400) % 2
    population = histology._population(labels, 1.0, torch.Generator().manual_seed(0))
    normal, tumor = labels == 0, labels == 1
    assert population.radius[tumor].mean() > population.radius[normal].mean()
    assert population.darkness[tumor].mean() < population.darkness[normal].mean()
    # …but no cue alone separates the classes.
    assert population.radius[tumor].min() < population.radius[normal].max()
    assert population.darkness[tumor].max() > population.darkness[normal].min()


def test_nuclei_are_numbered_without_holes() -> None:
    masks = nuclei.make_site("MoNuSeg", 12, 64, 1.0, 0).targets
    assert masks.shape == (12, 64, 64)
    for mask in masks:
        numbers = mask.unique().tolist()
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > 2


@pytest.mark.parametrize("site", nuclei.SITES)
def test_nuclei_are_darker_in_red_than_their_surroundings(site: str) -> None:
    data = nuclei.make_site(site, 24, 64, 1.0, 0)
    red, inside = data.images[:, 0], data.targets > 0
    assert red[inside].mean() < red[~inside].mean() - 0.05


def test_mask_of_a_round_nucleus_is_the_disk() -> None:
    drawn = tissue.draw(nucleus(20.0, 14.0, 6.5), 40)
    rows, columns = torch.meshgrid(torch.arange(40), torch.arange(40), indexing="ij")
    disk = (rows - 20) ** 2 + (columns - 14) ** 2 < 6.5**2
    assert torch.equal(drawn.place[0] > 0, disk)


def test_nucleus_at_the_border_is_cut_and_one_outside_is_not_drawn() -> None:
    assert 0 < tissue.draw(nucleus(0.0, 20.0, 5.0), 40).place.sum() < math.pi * 25
    assert tissue.draw(nucleus(-30.0, 20.0, 5.0), 40).place.sum() == 0


def test_overlapping_disks_are_pushed_apart() -> None:
    centers = tissue.pushed_apart(torch.tensor([[[10.0, 10.0], [12.0, 10.0]]]), torch.full((1, 2), 4.0))
    assert (centers[0, 0] - centers[0, 1]).norm() == pytest.approx(8, abs=0.2)


def test_empty_places_push_nobody() -> None:
    centers = torch.tensor([[[10.0, 10.0], [12.0, 10.0]]])
    assert torch.equal(tissue.pushed_apart(centers, torch.tensor([[4.0, 0.0]])), centers)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_noise_fields_have_unit_variance(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    assert tissue.smooth_noise(64, 64, scale, generator).std() == pytest.approx(1, abs=0.1)


def test_picture_follows_the_law_of_beer_and_lambert() -> None:
    look, generator = plain(), torch.Generator()
    picture = stain.photograph(torch.ones(1, 8, 8), torch.zeros(1, 8, 8), look, torch.ones(1, 2), generator)
    expected = [
        light * math.exp(-1.5 * density) for light, density in zip(look.background, look.hematoxylin, strict=True)
    ]
    assert picture[0, :, 4, 4].tolist() == pytest.approx(expected, rel=1e-4)


def test_empty_glass_shows_the_background() -> None:
    nothing = torch.zeros(1, 8, 8)
    picture = stain.photograph(nothing, nothing, plain(blur=2.0), torch.ones(1, 2), torch.Generator())
    assert picture[0, :, 0, 0].tolist() == pytest.approx([1.0, 0.9, 0.8], rel=1e-4)


def test_stain_varies_mildly_and_patients_share_a_part_of_it() -> None:
    groups = torch.arange(4000) // 8
    logarithms = stain.stain_variation(groups, torch.Generator().manual_seed(0)).log()
    within = logarithms[:, 0].view(-1, 8).std(1).square().mean().sqrt()
    assert within == pytest.approx(stain.IMAGE_STAIN_SPREAD, rel=0.1)
    assert logarithms.std() == pytest.approx(math.hypot(stain.IMAGE_STAIN_SPREAD, stain.PATIENT_STAIN_SPREAD), rel=0.1)


@PHANTOMS
def test_large_images_are_drawn_too(phantom: ModuleType) -> None:
    assert phantom.make_site(phantom.SITES[0], 2, 256, 1.0, 0).images.shape == (2, 3, 256, 256)
