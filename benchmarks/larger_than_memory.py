"""Images that memory cannot keep: four times the limit of what a process may hold, read from disk in every epoch.

The same images are trained on twice: all of them kept in memory, harmonized; and with a limit of a quarter of that, so
that every batch is read from the mapped file and harmonized anew, its pages dropped from memory before each round. CPU
seconds are compared: what a slow disk would add is not in them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from harmofl.data.images import LabelledImages, StoredImages
from harmofl.federation import inputs
from harmofl.federation.inputs import TrainingInputs
from measuring import Bound, Samples, benchmark, in_turns, ratios
from speed import TrainingSite

TIMES_LARGER = 4
NAME = "speed of training on 4 × the memory that may be used / on what fits"


def store(images: LabelledImages, path: Path) -> StoredImages:
    """The same images as the cache of decoded ones has them: bytes in a mapped file."""
    planes = np.memmap(path, dtype=np.uint8, mode="w+", shape=tuple(images.images.shape))
    planes[:] = (255 * images.images).round().byte().numpy()
    planes.flush()
    masks = images.targets.numpy().astype(np.uint8) if images.targets.ndim > 1 else None
    classes = images.targets if masks is None else torch.arange(256)
    mapped = np.memmap(path, dtype=np.uint8, mode="r", shape=tuple(images.images.shape))
    return StoredImages(mapped, masks, torch.arange(len(images)).view(-1, 1), classes, images.groups)


class Limited:
    """A site that trains with a limit on what it may keep in memory."""

    def __init__(self, folder: Path, times_larger: float) -> None:
        self.site = TrainingSite("nuclei", "harmofl", folder, {"data.images": 160})
        self.path = folder / "planes.bin"
        stored = store(self.site.train, self.path)
        client = self.site.client
        client._inputs = TrainingInputs(stored, self.site.settings.training, torch.device("cpu"), 1)
        self.limit = int(2 * stored.nbytes / times_larger)

    def seconds(self) -> float:
        """The CPU seconds of a round's steps."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        with patch.object(inputs, "LARGEST_CACHE", self.limit):
            return self.site.seconds()


@benchmark(Bound(NAME, at_least=0.9, quick=0.65))
def larger_than_memory(is_quick: bool) -> Samples:
    """How much slower training is where images cannot be kept."""
    if not hasattr(os, "posix_fadvise"):
        return {}
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        fitting, larger = Limited(Path(first), 1), Limited(Path(second), TIMES_LARGER)
        taken = in_turns({"fitting": fitting.seconds, "larger": larger.seconds}, 3 if is_quick else 7)
    return {NAME: ratios(taken["fitting"], taken["larger"])}
