import math

import pytest
import torch

from harmofl.data.images import LabelledImages
from harmofl.data.phantoms.prostate import SITES, make_site
from harmofl.data.phantoms.prostate_volumes import COVERAGE, THICKNESS, make_volumes, own_spacing


@pytest.mark.parametrize("site", SITES)
def test_a_site_scans_volumes_of_its_own_spacing_in_range(site: str) -> None:
    volumes = make_volumes(site, cases=2, size=32, shift=1.0, seed=0)
    spacing = own_spacing(site, 32, shift=1.0)
    assert volumes.images.shape == (2, 1, round(COVERAGE / THICKNESS[site]), 32, 32)
    assert volumes.targets.shape == volumes.images[:, 0].shape
    assert spacing[0] == pytest.approx(THICKNESS[site], rel=0.05)
    assert volumes.images.min() >= 0
    assert volumes.images.max() <= 1
    assert volumes.groups.tolist() == [0, 1]
    assert volumes.spacings is not None
    # Every patient's field of view is a little different, a tenth at most.
    assert torch.allclose(volumes.spacings, torch.tensor([spacing] * 2, dtype=torch.float64), rtol=0.11)
    assert not torch.equal(*volumes.spacings)


def test_without_shift_all_sites_scan_alike() -> None:
    assert len({own_spacing(site, 48, shift=0.0) for site in SITES}) == 1
    assert len({own_spacing(site, 48, shift=1.0) for site in SITES}) == len(SITES)


def test_thin_slices_are_those_of_the_slice_phantom_stacked() -> None:
    slices = round(COVERAGE / THICKNESS["BIDMC"])
    volumes = make_volumes("BIDMC", cases=2, size=32, shift=1.0, seed=3)
    stacked = make_site("BIDMC", 2, slices, 32, shift=1.0, seed=3)
    assert torch.equal(volumes.images[:, 0], stacked.images[:, 1].view(2, slices, 32, 32))
    assert torch.equal(volumes.targets, stacked.targets.view(2, slices, 32, 32))


@pytest.fixture(scope="module")
def fine() -> LabelledImages:
    return make_volumes("ISBI", 3, 64, 1.0, seed=0, spacing=(2.0, 2.0, 2.0))


@pytest.mark.parametrize("spacing", [(3.0, 2.5, 2.5), (6.0, 5.0, 5.0), (2.0, 4.0, 3.0)])
def test_a_common_spacing_keeps_the_size_of_every_prostate_and_of_the_field(
    fine: LabelledImages, spacing: tuple[float, float, float]
) -> None:
    common = make_volumes("ISBI", 3, 64, 1.0, seed=0, spacing=spacing)
    before, after = (
        volumes.targets.flatten(1).sum(1) * math.prod(steps) / 1000
        for volumes, steps in ((fine, (2.0, 2.0, 2.0)), (common, spacing))
    )
    assert torch.allclose(before, after, rtol=0.15)
    # Half-axes of 2.2 to 3.3 and 1.55 to 2.5 cm and a height of 3.3 to 5 cm: ellipsoids of 24 to 87 cm³, blunted.
    assert ((before > 20) & (before < 110)).all()
    assert torch.allclose(
        torch.tensor(common.images.shape[2:]) * torch.tensor(spacing), torch.tensor([60.0, 170.0, 170.0]), atol=3
    )


def test_a_prostate_goes_through_its_slices_without_a_gap_and_neighbours_look_alike() -> None:
    volumes = make_volumes("I2CVB", 4, 32, 1.0, seed=0)
    for volume, mask in zip(volumes.images[:, 0], volumes.targets, strict=True):
        shown = mask.flatten(1).any(1).nonzero().flatten()
        assert torch.equal(shown, torch.arange(int(shown[0]), int(shown[-1]) + 1))
        assert 0 < shown[0] < shown[-1] < len(mask) - 1
        neighbours, far = (volume[1:] - volume[:-1]).abs().mean(), (volume[8:] - volume[:-8]).abs().mean()
        assert neighbours < 0.6 * far


def test_the_same_arguments_give_the_same_bits_and_another_seed_other_patients() -> None:
    first, again, other = (make_volumes("UCL", 2, 24, 1.0, seed, (5.0, 6.0, 6.0)) for seed in (1, 1, 2))
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.targets, other.targets)
