"""Where and how tensors are computed: the device, the layout of images, the number of threads, memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from harmofl.errors import UsageError

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By their number of axes, the layout of images and volumes in which convolutions are fastest.

What travels and rests is in the plain one.
"""

KEPT_MEMORY = 2**30
"""Bytes that a process may keep from one step to the next."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As in glibc's malloc.h."""
LARGEST_MMAP_THRESHOLD = 2**25
"""Bytes; glibc takes no more. It gives each block above this back to the system as soon as it is freed."""


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def check_device(device: str) -> None:
    """Raise an error for an unknown device, and for CUDA where there is none."""
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device = {device!r}: must be 'auto', 'cpu' or 'cuda'")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device = 'cuda': no CUDA device here; use 'cpu' or 'auto'")


def to_device(images: Tensor, device: torch.device) -> Tensor:
    """Move images to the device, in the memory layout in which convolutions are fastest."""
    return send(images, device).to(memory_format=CHANNELS_LAST.get(images.ndim, torch.contiguous_format))


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device; to a GPU from memory that it can read by itself, so that nobody waits for it."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move a model to the device, its weights in the memory layout in which convolutions are fastest."""
    if any(tensor.device != device for tensor in (*model.parameters(), *model.buffers())):
        model.to(device)
    for weight in model.parameters():
        if weight.ndim in CHANNELS_LAST:
            weight.data = weight.data.to(memory_format=CHANNELS_LAST[weight.ndim])


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with a number of threads, as sums depend on it, and put the old number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def keep_freed_memory() -> None:
    """Let glibc keep the memory that one training step frees for the next; elsewhere, and where a user set it, nothing.

    Otherwise it goes back to the system, which clears it page by page when the next step wants as much again: a tenth
    to a fifth of the time of a step on the CPU.
    """
    is_set = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if sys.platform != "linux" or is_set:
        return
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        change(M_TRIM_THRESHOLD, KEPT_MEMORY)
