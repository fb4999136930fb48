import math

import pytest

from harmofl.analysis.patches import coarsen, fit_patch, resampled, weighted_quantile
from harmofl.models.volumes import Volume, check_strides


def test_quantiles_count_weights() -> None:
    assert weighted_quantile([1.0, 2.0, 3.0], [1, 1, 1], 0.5) == 2.0
    assert weighted_quantile([1.0, 2.0, 3.0], [5, 1, 1], 0.5) == 1.0
    assert weighted_quantile([3.0, 1.0], [1, 9], 0.95) == 3.0


@pytest.mark.parametrize(
    ("shape", "spacing", "budget"),
    [
        ((20, 320, 320), (3.0, 0.6, 0.6), 16 * 64 * 64),
        ((150, 512, 512), (1.0, 0.8, 0.8), 64 * 128 * 128),
        ((12, 200, 260), (5.0, 1.2, 1.2), 8 * 64 * 64),
        ((6, 300, 300), (6.0, 0.5, 0.5), 16 * 96 * 96),
        ((60, 40, 40), (1.0, 3.0, 3.0), 16 * 32 * 32),
    ],
)
def test_a_patch_fits_the_budget_the_volume_and_the_network(
    shape: tuple[int, int, int], spacing: tuple[float, float, float], budget: int
) -> None:
    patch = fit_patch(shape, spacing, budget)
    assert 0.4 * budget <= math.prod(patch) <= 1.1 * budget
    check_strides(Volume(patch, spacing))
    assert all(8 <= length <= max(8, math.ceil(most / 8) * 8) for length, most in zip(patch, shape, strict=True))
    assert patch[1] == patch[2] or shape[1] != shape[2]


def test_axes_with_room_are_equally_long_in_millimetres() -> None:
    patch = fit_patch((200, 400, 400), (2.0, 1.0, 1.0), 32 * 64 * 64)
    assert patch == (32, 64, 64)


def test_voxels_grow_until_a_patch_shows_enough_and_fine_axes_come_first() -> None:
    fine, shape, budget = (3.0, 0.5, 0.5), (20, 400, 400), 16 * 96 * 96
    spacing, patch = coarsen(fine, shape, budget, found=None)
    now = resampled(shape, fine, spacing)
    assert math.prod(patch) >= 0.25 * math.prod(now)
    assert spacing[0] == 3.0
    assert spacing[1] == spacing[2] > 0.5
    # A small object is shown whole long before a quarter of the volume is.
    nearer, patch = coarsen(fine, shape, budget, found=(30.0, 50.0, 50.0))
    assert 0.5 < nearer[1] < spacing[1]
    assert all(n * step >= 1.25 * part for n, step, part in zip(patch, nearer, (30.0, 50.0, 50.0), strict=True))
    untouched, _ = coarsen((3.0, 3.0, 3.0), (20, 48, 48), budget, found=None)
    assert untouched == [3.0, 3.0, 3.0]
