"""What a malicious server sends to a hospital: settings, and weights that would let it read images."""

from typing import Any

import torch

from harmofl import registry
from harmofl.federation.messages import settings_to_send
from harmofl.settings import Settings, resolve
from harmofl.states import State, snapshot

TINY = {"data__size": 16, "data__limit": 4, "data__split_by": "image"}
"""With these, 256 scores of crafted weights were the 256 grey values of an image."""


def wanted(**more: Any) -> Settings:
    """What a server sends after it knows the images; `section__name=value` adds something."""
    overrides = {"data.folder": "there", "training.rounds": 3}
    overrides |= {name.replace("__", "."): value for name, value in more.items()}
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides=overrides)
    return settings.with_values("data", channels=3, classes=["0", "255"])


def first_model(settings: Settings) -> State:
    _, method = resolve(file=settings_to_send(settings))
    return snapshot(registry.tasks.find("segmentation").build_model(settings, method).network)


def crafted(state: State, number: int) -> State:
    """Weights with which a server would read one grey value: nearly all is zero, and one weight is huge."""
    zero = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    name = next(name for name, tensor in state.items() if tensor.is_floating_point() and tensor.ndim > 1)
    zero[name].view(-1)[number % zero[name].numel()] = 1e4
    return zero | {name: tensor for name, tensor in state.items() if "running" in name or tensor.ndim == 0}


def weights_in(state: State) -> list[str]:
    return [name for name in state if "running" not in name and "num_batches" not in name]
