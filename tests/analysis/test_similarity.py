import pytest
import torch
from monai.metrics.regression import SSIMMetric

from harmofl.analysis.similarity import align, psnr, ssim


def images(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_psnr_of_a_constant_error_is_its_logarithm() -> None:
    truth = images(0, 2, 3, 4, 4) * 0.5
    assert psnr(truth + 0.1, truth).tolist() == pytest.approx([20.0, 20.0], abs=1e-4)
    assert psnr(truth, truth).tolist() == pytest.approx([100.0, 100.0])


def test_ssim_is_one_for_equal_images_and_that_of_an_independent_implementation_otherwise() -> None:
    found, truth = images(0, 2, 3, 16, 20), images(1, 2, 3, 16, 20)
    found = 0.5 * found + 0.5 * truth
    assert ssim(truth, truth).tolist() == pytest.approx([1.0, 1.0])
    theirs = SSIMMetric(spatial_dims=2, data_range=1.0)(found, truth)
    torch.testing.assert_close(ssim(found, truth), theirs.flatten(), atol=1e-4, rtol=0)


def test_ssim_of_two_flat_images_compares_their_brightness_alone() -> None:
    dark, bright = torch.full((1, 1, 12, 12), 0.2), torch.full((1, 1, 12, 12), 0.8)
    expected = (2 * 0.2 * 0.8 + 1e-4) / (0.04 + 0.64 + 1e-4)
    assert float(ssim(dark, bright)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("turn", [False, True])
def test_a_shift_around_the_frame_and_a_half_turn_are_undone(turn: bool) -> None:
    truth = images(2, 2, 3, 6, 5)
    moved = truth.roll((2, -1), dims=(-2, -1))
    moved = moved.flip((-2, -1)) if turn else moved
    assert torch.equal(align(moved, truth), truth)


def test_each_image_is_aligned_by_itself() -> None:
    truth = images(3, 2, 1, 4, 4)
    moved = torch.stack([truth[0].roll(1, dims=-1), truth[1].flip((-2, -1))])
    assert torch.equal(align(moved, truth), truth)
