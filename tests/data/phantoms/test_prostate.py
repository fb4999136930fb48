from dataclasses import astuple, fields

import pytest
import torch

from harmofl.data.phantoms import pelvis, prostate
from harmofl.data.phantoms.prostate import APPEARANCES, HIGHEST, LOWEST, SITES, make_site, site_appearance


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("site", SITES)
def test_a_site_has_cases_times_slices_images_in_range(site: str, size: int) -> None:
    data = make_site(site, cases=3, slices=5, size=size, shift=1.0, seed=0)
    assert data.images.shape == (15, 3, size, size)
    assert data.images.dtype == torch.float32
    assert data.images.isfinite().all()
    assert data.images.min() >= 0
    assert data.images.max() <= 1
    assert data.targets.shape == (15, size, size)
    assert data.targets.dtype == torch.int64
    assert set(data.targets.unique().tolist()) == {0, 1}
    assert data.groups.tolist() == [0] * 5 + [1] * 5 + [2] * 5


def test_the_public_multi_site_names_are_known() -> None:
    assert SITES == ("BIDMC", "HK", "I2CVB", "ISBI", "ISBI_1.5", "UCL")


def test_the_same_arguments_give_the_same_bits() -> None:
    first, again = (make_site("HK", 2, 4, 48, 1.0, seed=7) for _ in range(2))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.targets, again.targets)


def test_the_number_of_threads_neither_changes_the_bits_nor_is_changed() -> None:
    images, threads = [], torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            images.append(make_site("UCL", 3, 8, 128, 1.0, seed=0).images)
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*images)


def test_the_global_random_state_is_neither_used_nor_changed() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = make_site("HK", 1, 3, 32, 1.0, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(make_site("HK", 1, 3, 32, 1.0, seed=0).images, first.images)


@pytest.mark.parametrize(("site", "seed"), [("HK", 1), ("UCL", 0)])
def test_another_seed_or_site_gives_other_patients(site: str, seed: int) -> None:
    first = make_site("HK", 2, 4, 32, 0.0, seed=0)
    other = make_site(site, 2, 4, 32, 0.0, seed=seed)
    assert not torch.equal(first.targets, other.targets)


def test_outer_channels_are_the_neighbouring_slices_and_repeat_at_the_ends() -> None:
    images = make_site("ISBI", 2, 4, 32, 1.0, seed=0).images.view(2, 4, 3, 32, 32)
    own = images[:, :, 1]
    assert torch.equal(images[:, 1:, 0], own[:, :-1])
    assert torch.equal(images[:, :-1, 2], own[:, 1:])
    assert torch.equal(images[:, 0, 0], own[:, 0])
    assert torch.equal(images[:, -1, 2], own[:, -1])


def test_a_fifth_to_a_third_of_the_slices_show_no_prostate_and_those_are_at_the_ends() -> None:
    masks = torch.stack([make_site(site, 24, 8, 32, 0.0, seed=0).targets for site in SITES])
    shown = masks.view(-1, 8, 32 * 32).amax(-1)
    assert 0.20 < 1 - shown.float().mean() < 0.35
    assert not shown[:, [0, -1]].any()
    assert shown[:, 2:6].all()


def test_the_prostate_is_of_plausible_size_and_place() -> None:
    data = make_site("UCL", 8, 8, 64, 1.0, seed=0)
    areas = data.targets.flatten(1).sum(1)
    pixel = APPEARANCES["UCL"].field_of_view / 64  # cm
    # The largest gland drawn is an ellipse of 3.3 x 2.5 cm half-axes, widened by its taper and by the warp.
    assert areas.max() * pixel**2 < 1.6 * 3.1416 * 3.3 * 2.5
    centre_columns = data.targets.sum(1).argmax(1)[areas > 0]
    assert (centre_columns - 32).abs().max() < 20


def test_without_shift_all_sites_have_the_mean_appearance() -> None:
    looks = [site_appearance(site, 0.0) for site in SITES]
    assert all(look == looks[0] for look in looks)
    expected = sum(row.echo_time for row in APPEARANCES.values()) / len(SITES)
    assert looks[0].echo_time == pytest.approx(expected)


@pytest.mark.parametrize("site", SITES)
def test_shift_one_is_the_nominal_appearance_and_half_is_halfway(site: str) -> None:
    assert astuple(site_appearance(site, 1.0)) == pytest.approx(astuple(APPEARANCES[site]))
    mean, half = site_appearance(site, 0.0), site_appearance(site, 0.5)
    assert half.gamma == pytest.approx((mean.gamma + APPEARANCES[site].gamma) / 2)


@pytest.mark.parametrize("site", SITES)
def test_an_exaggerated_shift_stays_within_bounds(site: str) -> None:
    look = site_appearance(site, 5.0)
    for field in fields(look):
        assert getattr(LOWEST, field.name) <= getattr(look, field.name) <= getattr(HIGHEST, field.name)
    images = make_site(site, 1, 3, 32, 5.0, seed=0).images
    assert images.isfinite().all()
    assert images.max() <= 1


@pytest.mark.parametrize("site", SITES)
def test_each_volume_is_clipped_at_its_99th_percentile(site: str) -> None:
    volumes = make_site(site, 3, 6, 48, 1.0, seed=0).images[:, 1].reshape(3, -1)
    saturated = (volumes >= 1 - 1e-6).float().mean(1)
    assert (saturated - 0.01).abs().max() < 0.002


def test_the_shift_changes_the_look_and_leaves_the_kind_of_patient() -> None:
    def brightness_spread(shift: float) -> float:
        means = [make_site(site, 6, 6, 32, shift, seed=0).images.mean().item() for site in SITES]
        return max(means) - min(means)

    assert brightness_spread(1.0) > 2 * brightness_spread(0.0)


def test_an_endorectal_coil_brightens_the_middle() -> None:
    def middle_over_edge(site: str) -> float:
        images = make_site(site, 8, 4, 64, 1.0, seed=0).images[:, 1]
        return (images[:, 24:56, 24:40].mean() / images[:, :, [0, 1, -2, -1]].mean()).item()

    assert middle_over_edge("BIDMC") > 1.2 * middle_over_edge("UCL")


def test_chunks_of_cases_do_not_change_the_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_site("HK", 3, 4, 32, 1.0, seed=0)
    monkeypatch.setattr(prostate, "PIXELS_AT_ONCE", 1)
    assert torch.equal(make_site("HK", 3, 4, 32, 1.0, seed=0).targets, whole.targets)


def test_the_image_size_does_not_change_the_patients() -> None:
    small, large = (make_site("ISBI", 3, 4, size, 1.0, seed=0) for size in (32, 96))
    # The middle of a coarse pixel is the middle of the 3 x 3 fine pixels that it covers.
    assert torch.equal(large.targets[:, 1::3, 1::3], small.targets)


def test_every_tissue_that_is_painted_has_a_signal() -> None:
    assert set(prostate.RELAXATION) | set(prostate.FAT_SHARE) == set(pelvis.TISSUES)


def test_a_single_slice_is_its_own_neighbour() -> None:
    images = make_site("HK", 1, 1, 32, 1.0, seed=0).images
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 2], images[:, 1])


def test_full_resolution_works() -> None:
    data = make_site("BIDMC", 1, 2, 384, 1.0, seed=0)
    assert data.images.shape == (2, 3, 384, 384)


def test_an_unknown_site_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'RUNMC'; known: BIDMC, HK, I2CVB, ISBI, ISBI_1\.5, UCL"):
        make_site("RUNMC", 1, 1, 32, 1.0, seed=0)
