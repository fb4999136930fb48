import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from harmofl.data.augmentation import dihedral


def all_eight(image: Tensor) -> list[list[int]]:
    """The symmetries of a square, from transposes and flips alone."""
    versions = [image, image.flip(-1), image.flip(-2), image.flip(-1, -2)]
    return [version.flatten().tolist() for one in versions for version in (one, one.transpose(-1, -2))]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**31))
def test_an_image_and_its_mask_move_together(size: int, count: int, channels: int, seed: int) -> None:
    masks = torch.arange(count * size * size).reshape(count, size, size)
    images = torch.stack([masks.float() + channel for channel in range(channels)], dim=1)
    turned, turned_masks = dihedral(images, masks, Generator().manual_seed(seed))
    for channel in range(channels):
        assert torch.equal(turned[:, channel], turned_masks.float() + channel)


@given(st.integers(1, 5), st.integers(0, 2**31))
def test_each_image_is_one_of_its_eight_turns_and_flips(size: int, seed: int) -> None:
    masks = torch.arange(3 * size * size).reshape(3, size, size)
    turned, _ = dihedral(masks[:, None].float(), masks, Generator().manual_seed(seed))
    for before, after in zip(masks, turned[:, 0].long(), strict=True):
        assert after.flatten().tolist() in all_eight(before)
        assert sorted(after.flatten().tolist()) == before.flatten().tolist()


def test_all_eight_occur_and_images_of_a_batch_differ() -> None:
    masks = torch.arange(4).reshape(1, 2, 2).expand(200, 2, 2)
    _, turned = dihedral(masks[:, None].float(), masks, Generator().manual_seed(0))
    seen = {tuple(mask.flatten().tolist()) for mask in turned}
    assert seen == {tuple(version) for version in all_eight(masks[0])}
    assert len(seen) == 8


def test_the_originals_are_left_as_they_were() -> None:
    images, masks = torch.rand(8, 1, 3, 3), torch.arange(72).reshape(8, 3, 3)
    copies = images.clone(), masks.clone()
    dihedral(images, masks, Generator().manual_seed(0))
    assert torch.equal(images, copies[0])
    assert torch.equal(masks, copies[1])


def test_labels_stay_while_their_images_turn() -> None:
    images = torch.arange(4.0).reshape(1, 1, 2, 2).expand(50, 1, 2, 2)
    turned, labels = dihedral(images, torch.arange(50), Generator().manual_seed(0))
    assert torch.equal(labels, torch.arange(50))
    assert not torch.equal(turned, images)


def test_rectangles_and_volumes_keep_their_size() -> None:
    masks = torch.arange(3 * 2 * 4).reshape(1, 3, 2, 4).expand(60, 3, 2, 4)
    images, turned = dihedral(masks[:, None].float(), masks, Generator().manual_seed(0))
    assert torch.equal(images[:, 0].long(), turned)
    expected = {tuple(masks[0].flip(axes).flatten().tolist()) for axes in ([], [-1], [-2], [-1, -2])}
    assert {tuple(mask.flatten().tolist()) for mask in turned} == expected
