"""An image of each site with what the newest model finds on it, for whoever watches a run on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from harmofl.files import write_whole

END = ".safetensors"


@dataclass(frozen=True)
class LiveSample:
    """One image (C, H, W) in [0, 1], and two masks (H, W) or the names of two classes."""

    site: str
    round: int
    image: Tensor
    truth: Tensor | str
    found: Tensor | str


class LiveSamples:
    """A folder with a file per site; it is there only while the run's process is, as its images are patients'."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, sample: LiveSample) -> None:
        """Replace the site's sample."""
        parts = {"image": sample.image, "truth": sample.truth, "found": sample.found}
        tensors = {
            name: part.clone(memory_format=torch.contiguous_format)
            for name, part in parts.items()
            if isinstance(part, Tensor)
        }
        words = {name: part for name, part in parts.items() if isinstance(part, str)}
        content = save(tensors, metadata={"round": str(sample.round), **words})
        with suppress(OSError):  # a full disk ends the run elsewhere, with a message
            write_whole(self._folder / f"{sample.site}{END}", content, lasting=False)

    def read(self) -> Iterator[LiveSample]:
        """The samples of all sites, in the order of their names."""
        for path in sorted(self._folder.glob(f"*{END}")):
            with suppress(OSError, SafetensorError, KeyError, ValueError, RuntimeError):  # replaced or removed just now
                yield _read(path)

    def remove(self) -> None:
        """Leave no image behind."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _read(path: Path) -> LiveSample:
    with safe_open(path, framework="pt") as file:
        words = file.metadata()
        parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    truth, found = (parts[name] if name in parts else words[name] for name in ("truth", "found"))
    return LiveSample(path.name.removesuffix(END), int(words["round"]), parts["image"], truth, found)
