"""Random changes of training images, before the harmonizer: named sets, for images (N, C, H, W) and volumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Generator, Tensor

IMAGE, MASK = "image", "mask"

Augmentation = Callable[[Tensor, Tensor, Generator], tuple[Tensor, Tensor]]
"""From images (N, C, …), their masks (N, …) or labels (N,), and a generator to changed images and masks."""


def dihedral(images: Tensor, masks: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Turn each image and its mask by 0, 90, 180 or 270 degrees and flip it, at random; labels (N,) stay.

    What is not square is turned by 0 or 180 degrees only, to keep its size.
    """
    choices = torch.randint(8, (len(images),), generator=generator)
    turn = 1 if images.shape[-1] == images.shape[-2] else 2
    images, masks = images.clone(), masks.clone()
    for choice in range(1, 8):
        chosen = choices == choice
        for tensor in (images, masks) if masks.ndim > 1 else (images,):
            turned = torch.rot90(tensor[chosen], turn * (choice % 4), dims=(-2, -1))
            tensor[chosen] = turned.flip(-1) if choice >= 4 else turned
    return images, masks


@dataclass(frozen=True)
class Strength:
    """How far, and how often, images are changed. Lengths are parts of the image's size, intensities parts of 1."""

    moved: float = 0.0
    """How often an image is turned, scaled and shifted."""
    degrees: float = 0.0
    """Of a turn, at most; a volume turns in the plane of its slices."""
    scale: float = 0.0
    """Largest change of the size."""
    shift: float = 0.0
    warped: float = 0.0
    """How often a grid over the image is distorted."""
    recontrasted: float = 0.0
    """How often the contrast curve and the gain change, each for itself."""
    gamma: tuple[float, float] = (1.0, 1.0)
    gain: float = 0.0
    noisy: float = 0.0
    noise: float = 0.0
    blurred: float = 0.0
    """How often an image is smoothed, and how often it is scanned more coarsely, each for itself."""


STRENGTHS: Mapping[str, Strength] = {
    "flips": Strength(),
    "standard": Strength(
        moved=0.5, degrees=15, scale=0.15, shift=0.05,
        recontrasted=0.3, gamma=(0.75, 1.35), gain=0.15,
        noisy=0.15, noise=0.03,
    ),
    "strong": Strength(
        moved=0.8, degrees=30, scale=0.25, shift=0.1,
        warped=0.3,
        recontrasted=0.5, gamma=(0.6, 1.7), gain=0.3,
        noisy=0.3, noise=0.06,
        blurred=0.2,
    ),
}  # fmt: skip
"""The sets that MONAI's transforms make; all flip along every axis."""


def find_augmentation(name: str) -> Augmentation | None:
    """The function of a named set; None for "none".

    Example:
        >>> flips = find_augmentation("flips")
        >>> mask = torch.tensor([[[0, 1], [1, 1]]])
        >>> images, masks = flips(mask[:, None].float(), mask, Generator().manual_seed(0))
        >>> torch.equal(images[:, 0].long(), masks)
        True
    """
    if name == "none":
        return None
    if name == "dihedral":
        return dihedral
    return partial(change, STRENGTHS[name])


def change(strength: Strength, images: Tensor, masks: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Change each image and its mask at random, always alike; a mask takes the nearest value, labels (N,) stay.

    Args:
        strength: How far and how often.
        images: (N, C, H, W) or (N, C, D, H, W) in [0, 1].
        masks: The same without channels, or labels (N,).
        generator: All that is random follows from it.

    Returns:
        New images, still in [0, 1], and new masks.
    """
    has_masks = masks.ndim > 1
    transforms = _transforms(strength, tuple(images.shape[2:]), has_masks)
    transforms.set_random_state(seed=int(torch.randint(2**31, (), generator=generator)))
    with _plain_tensors():
        changed = [
            transforms({IMAGE: image, MASK: mask[None].float()} if has_masks else {IMAGE: image})
            for image, mask in zip(images, masks, strict=True)
        ]
    augmented = torch.stack([each[IMAGE] for each in changed]).clamp_(0, 1)
    return augmented, torch.stack([each[MASK][0] for each in changed]).to(masks.dtype) if has_masks else masks


@cache
def _transforms(strength: Strength, shape: tuple[int, ...], has_masks: bool) -> Any:
    """MONAI's transforms for images of a shape, in the order in which a scanner and a patient would act."""
    from monai.transforms import Compose

    keys, modes = ((IMAGE, MASK), ("bilinear", "nearest")) if has_masks else ((IMAGE,), ("bilinear",))
    return Compose([*_in_space(strength, shape, keys, modes), *_in_intensity(strength, len(shape))])


def _in_space(strength: Strength, shape: tuple[int, ...], keys: tuple[str, ...], modes: tuple[str, ...]) -> list[Any]:
    from monai.transforms import RandAffined, RandFlipd, RandGridDistortiond

    axes = len(shape)
    angle = torch.pi * strength.degrees / 180
    transforms = [RandFlipd(keys, prob=0.5, spatial_axis=axis) for axis in range(axes)]
    if strength.moved:
        moved = RandAffined(
            keys,
            prob=strength.moved,
            rotate_range=angle if axes == 2 else (angle, 0.0, 0.0),  # slices are usually thick: no turn across them
            scale_range=[strength.scale] * axes,
            translate_range=[strength.shift * length for length in shape],
            mode=modes,
            padding_mode="reflection",  # black corners would be a new look
        )
        transforms.append(moved)
    if strength.warped:
        warped = RandGridDistortiond(
            keys, num_cells=4, prob=strength.warped, distort_limit=0.1, mode=modes, padding_mode="reflection"
        )
        transforms.append(warped)
    return transforms


def _in_intensity(strength: Strength, axes: int) -> list[Any]:
    from monai import transforms as monai

    keys, transforms = (IMAGE,), []
    if strength.blurred:
        widths = dict(zip(("sigma_x", "sigma_y", "sigma_z"), [(0.4, 1.0)] * axes, strict=False))
        transforms.append(monai.RandGaussianSmoothd(keys, prob=strength.blurred, **widths))
        coarser = monai.RandSimulateLowResolutiond(
            keys, prob=strength.blurred, zoom_range=(0.5, 1.0), upsample_mode="bilinear" if axes == 2 else "trilinear"
        )
        transforms.append(coarser)
    if strength.recontrasted:
        transforms.append(monai.RandAdjustContrastd(keys, prob=strength.recontrasted, gamma=strength.gamma))
        transforms.append(monai.RandScaleIntensityd(keys, prob=strength.recontrasted, factors=strength.gain))
    if strength.noisy:
        transforms.append(monai.RandGaussianNoised(keys, prob=strength.noisy, std=strength.noise))
    return transforms


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """For a block, MONAI notes nothing down about images, which takes half of the time."""
    from monai.data import get_track_meta, set_track_meta

    before = get_track_meta()
    set_track_meta(False)
    try:
        yield
    finally:
        set_track_meta(before)
