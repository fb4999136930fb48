import math

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from harmofl.data.augmentation import STRENGTHS, Strength, change, find_augmentation

SHAPES = [(24, 20), (6, 24, 20)]


def ball(shape: tuple[int, ...]) -> Tensor:
    """A mask of one class, off the centre and elongated, so that every turn shows."""
    places = torch.meshgrid(*(torch.linspace(-1, 1, length) for length in shape), indexing="ij")
    reach = sum(((place - 0.2) / (0.5 + 0.15 * axis)) ** 2 for axis, place in enumerate(places))
    return (torch.as_tensor(reach) < 1).long()


def overlap(first: Tensor, second: Tensor) -> float:
    return float(2 * (first & second).sum() / (first.sum() + second.sum()))


@pytest.mark.parametrize("shape", [(2, 3), (2, 2, 3)])
def test_flips_are_exact_and_all_of_them_occur(shape: tuple[int, ...]) -> None:
    mask = torch.arange(math.prod(shape)).reshape(shape)
    masks = mask.expand(120, *shape)
    images, flipped = change(STRENGTHS["flips"], masks[:, None] / 100, masks, Generator().manual_seed(0))
    assert torch.equal((images[:, 0] * 100).round().long(), flipped)
    axes = [[axis for axis in range(len(shape)) if choice >> axis & 1] for choice in range(2 ** len(shape))]
    assert {tuple(each.flatten().tolist()) for each in flipped} == {
        tuple(mask.flip(some).flatten().tolist()) for some in axes
    }


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", STRENGTHS)
def test_a_mask_moves_with_its_image_and_takes_no_new_value(name: str, shape: tuple[int, ...]) -> None:
    masks = 3 * ball(shape).expand(12, *shape)
    spaces = Strength(**{key: value for key, value in vars(STRENGTHS[name]).items() if key in SPACE})
    images, moved = change(spaces, masks[:, None] / 3, masks, Generator().manual_seed(1))
    assert moved.dtype == torch.int64
    assert set(moved.unique().tolist()) == {0, 3}
    overlaps = [overlap(image[0] > 0.5, mask > 0) for image, mask in zip(images, moved, strict=True)]
    # Where both were resampled twice, edges of so small an object differ; unmoved masks overlap by a half.
    assert sum(overlaps) / len(overlaps) > 0.93
    assert min(overlaps) > 0.75


SPACE = {"moved", "degrees", "scale", "shift", "warped"}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", STRENGTHS)
def test_images_stay_in_range_and_the_originals_as_they_were(name: str, shape: tuple[int, ...]) -> None:
    images, masks = torch.rand(10, 2, *shape, generator=Generator().manual_seed(0)), ball(shape).expand(10, *shape)
    copy = images.clone()
    changed, _ = change(STRENGTHS[name], images, masks, Generator().manual_seed(0))
    assert type(changed) is Tensor
    assert changed.shape == images.shape
    assert 0 <= changed.min() < changed.max() <= 1
    assert torch.equal(images, copy)
    assert not torch.equal(changed, images)


@pytest.mark.parametrize("name", STRENGTHS)
def test_all_that_is_random_follows_from_the_generator(name: str) -> None:
    images, masks = torch.rand(6, 1, 16, 16), ball((16, 16)).expand(6, 16, 16)
    outside = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    first, again, other = (change(STRENGTHS[name], images, masks, Generator().manual_seed(s)) for s in (5, 5, 6))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(torch.random.get_rng_state(), outside[0])
    assert np.array_equal(np.random.get_state()[1], outside[1])


def test_stronger_sets_change_images_further() -> None:
    wave = torch.sin(torch.arange(24.0) / 4)
    images = (0.5 + 0.4 * wave[:, None] * wave).expand(40, 1, 24, 24)
    labels = torch.zeros(40, dtype=torch.int64)
    difference = {}
    for name, strength in STRENGTHS.items():
        changed, same = change(strength, images, labels, Generator().manual_seed(0))
        assert torch.equal(same, labels)
        # The sorted pixels and not their places, which a flip alone changes.
        difference[name] = (changed.flatten(1).sort().values - images.flatten(1).sort().values).abs().mean()
    assert 0 == difference["flips"] < difference["standard"] < difference["strong"]


def test_a_volume_turns_in_the_plane_of_its_slices_only() -> None:
    levels = torch.linspace(0, 1, 7).view(1, 1, 7, 1, 1).expand(8, 1, 7, 12, 12)
    turns = Strength(moved=1.0, degrees=30)
    turned, _ = change(turns, levels, torch.zeros(8), Generator().manual_seed(0))
    upright = [volume if volume[0, 0, 0, 0] < 0.5 else volume.flip(1) for volume in turned]  # flips are allowed
    assert torch.allclose(torch.stack(upright), levels, atol=1e-5)


def test_none_changes_nothing_and_costs_nothing() -> None:
    assert find_augmentation("none") is None
