"""What a network would take of a hospital's memory, known before any of it is taken: tensors without content."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from harmofl import registry
from harmofl.devices import choose_device
from harmofl.errors import RefusalError
from harmofl.methods.harmonizers import identity
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.settings import Settings

MEGABYTE = 2**20
CONTAINER = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says how much memory a container, or a service, may use."""
CANNOT = (RuntimeError, NotImplementedError, AssertionError, TypeError, ValueError)
"""What a network may raise that needs real tensors, or other images; of what comes behind, nothing is known then."""


def build_shapes(settings: Settings, method: Method) -> Model | None:
    """The model without memory for its numbers; None where it cannot be built so."""
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")  # of initializations that have nothing to do
            plain = replace(method, harmonizer=identity)  # a harmonizer may need real tensors, and is small
            return registry.tasks.find(settings.task).build_model(settings, plain)
    except CANNOT:
        return None


def weights_bytes(network: nn.Module) -> int:
    """What a network's weights and buffers take."""
    return sum(tensor.nbytes for tensor in network.state_dict().values())


def kept_bytes(network: nn.Module, images: Tensor) -> int:
    """What a forward pass keeps for the backward pass, weights aside; where it fails, what it keeps until then.

    So the real one takes as much before it fails, as with instance norm on a single pixel.

    >>> with torch.device("meta"):
    ...     kept_bytes(nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU()), torch.empty(2, 1, 8, 8))  # 4 bytes a number
    2560
    """
    kept: dict[int, int] = {}
    storages = []  # held, so that no two have one address

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            storages.append(storage)
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), suppress(*CANNOT):
        network.train()(images)
    return sum(kept.values())


def step_bytes(settings: Settings, network: nn.Module) -> int:
    """What a training step takes at least: weights, their gradients, and what is kept of a batch."""
    shape = registry.tasks.find(settings.task).image_shape(settings.data)
    images = torch.empty((settings.training.batch_size, *shape), device="meta")
    return 2 * weights_bytes(network) + images.nbytes + kept_bytes(network, images)


def memory_of(device: str) -> int:
    """The bytes that the device has, or that this process may use of the machine's."""
    chosen = choose_device(device)
    if chosen.type == "cuda":
        return int(torch.cuda.mem_get_info(chosen)[1])
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(CONTAINER.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no such file, or "max"
        return machine


def refuse_what_cannot_fit(settings: Settings, method: Method, largest_network: int, largest_step: int) -> None:
    """Refuse a network that could not travel in a message, and images and batches that no memory here can hold.

    Both limits are in bytes.
    """
    model = build_shapes(settings, method)
    if model is None:
        return
    if (needed := weights_bytes(model)) > largest_network:
        raise RefusalError(
            f"a network of {needed / MEGABYTE:.0f} MB: at most {largest_network / MEGABYTE:.0f} are accepted "
            "(largest_message_mb)"
        )
    try:
        needed = step_bytes(settings, model.network)
    except CANNOT:
        return
    if needed > largest_step:
        images = " × ".join(map(str, settings.data.input_size))
        raise RefusalError(
            f"training on {settings.training.batch_size} images of {images} at a time (training.batch_size, data.size) "
            f"takes {needed / MEGABYTE:.0f} MB of memory or more, and there are {largest_step / MEGABYTE:.0f} here "
            "(largest_memory_mb in its site.toml)"
        )
