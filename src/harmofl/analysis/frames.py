"""Where attacked images lie: they fill their frame, or stand in a black one that the attacker knows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from harmofl.analysis.similarity import align, psnr, ssim

FRAMES = ("whole", "margin")
"""Images that fill the frame, and images in the middle of a black frame twice as high and wide."""


def window(frame: str, height: int, width: int) -> tuple[slice, slice]:
    """Where the images lie in their frame."""
    if frame == "whole":
        return slice(0, height), slice(0, width)
    return slice(height // 2, height // 2 + height), slice(width // 2, width // 2 + width)


def put_in_frame(images: Tensor, frame: str) -> Tensor:
    """Put images into their frame."""
    if frame == "whole":
        return images
    height, width = images.shape[-2:]
    rows, columns = window(frame, height, width)
    whole = images.new_zeros(*images.shape[:-2], 2 * height, 2 * width)
    whole[..., rows, columns] = images
    return whole


def nearest_of(guess: Tensor, truths: Tensor, place: Sequence[slice]) -> tuple[tuple[float, float], Tensor, Tensor]:
    """PSNR and SSIM against the true image that a reconstruction is most like; that image; the reconstruction."""
    fitted = align(guess.expand_as(truths), truths)[tuple(place)]
    wanted = truths[tuple(place)]
    similarity = ssim(fitted, wanted)
    best = int(similarity.argmax())
    score = (float(psnr(fitted[best : best + 1], wanted[best : best + 1])), float(similarity[best]))
    return score, wanted[best], fitted[best]
