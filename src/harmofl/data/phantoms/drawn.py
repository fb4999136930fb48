"""Synthetic hospitals on disk: drawn once, found again by all that they depend on.

Drawing takes longer than anything else between a command and its first step. Files are the user's own cache: a run is
the same with them, without them, and where they cannot be written.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from harmofl.data.cache import Cache, digest
from harmofl.data.images import LabelledImages
from harmofl.files import write_whole

FOLDER = "phantoms"
"""Within the cache."""

END = ".safetensors"

LARGEST = 2**26
"""Bytes of a site that are worth keeping: the smaller presets' sites, not the paper's."""

MOST = 2**30
"""Bytes of all sites together; the oldest go first."""


def draw_once(
    make: Callable[[], LabelledImages], maker: Callable[..., object], told: Iterable[Any], cache: Cache
) -> LabelledImages:
    """The images that `make` draws, from the cache if they are there.

    `maker`: the function that draws them, whose code they depend on; `told`: all else that they depend on.
    """
    key = digest(f"{maker.__module__}.{maker.__qualname__}", _code(maker.__module__), *told)
    path = cache.folder / FOLDER / f"{key}{END}"
    kept = _read(path)
    if kept is not None:
        return kept
    images = make()
    if _num_bytes(images) <= LARGEST:
        with suppress(OSError):  # no right or no room: they will be drawn again
            cache.claim()
            write_whole(path, safetensors.torch.save(_tensors(images)), mode=0o600)
            _forget_oldest(path.parent)
    return images


def _read(path: Path) -> LabelledImages | None:
    try:
        return LabelledImages(**safetensors.torch.load(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, safetensors.SafetensorError):  # not there, or damaged
        return None


def _tensors(images: LabelledImages) -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous() for name, tensor in vars(images).items() if tensor is not None}


def _num_bytes(images: LabelledImages) -> int:
    return sum(tensor.nbytes for tensor in _tensors(images).values())


def _forget_oldest(folder: Path) -> None:
    files = sorted(((path.stat(), path) for path in folder.glob(f"*{END}")), key=lambda each: each[0].st_mtime)
    total = sum(stat.st_size for stat, _ in files)
    for stat, path in files:
        if total <= MOST:
            return
        path.unlink(missing_ok=True)
        total -= stat.st_size


@cache
def _code(module: str) -> str:
    """What draws: the files of this package and of the module that calls it, and the libraries' versions."""
    found = hashlib.sha256()
    for path in [*sorted(Path(__file__).parent.glob("*.py")), Path(str(sys.modules[module].__file__))]:
        found.update(path.read_bytes())
    libraries = (torch.__version__, np.__version__, torch.backends.cpu.get_cpu_capability())
    return digest(found.hexdigest(), *libraries)
