"""Random changes of training images, before the harmonizer."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def dihedral(images: Tensor, masks: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Turn each image and its mask by 0, 90, 180 or 270 degrees and flip it, at random; labels (N,) stay."""
    choices = torch.randint(8, (len(images),), generator=generator)
    images, masks = images.clone(), masks.clone()
    for choice in range(1, 8):
        chosen = choices == choice
        for tensor in (images, masks) if masks.ndim > 1 else (images,):
            turned = torch.rot90(tensor[chosen], choice % 4, dims=(-2, -1))
            tensor[chosen] = turned.flip(-1) if choice >= 4 else turned
    return images, masks
