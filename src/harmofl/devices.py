"""Where and how tensors are computed with: the device, the layout of images, the number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

CHANNELS_LAST = torch.channels_last
"""The layout in which convolutions are fastest; what travels and rests is in the plain one."""


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def to_device(images: Tensor, device: torch.device) -> Tensor:
    """Bring images where they are computed with, in the layout in which convolutions are fastest."""
    return images.to(device, memory_format=CHANNELS_LAST)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with a number of threads, as sums depend on it, and put the old number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
