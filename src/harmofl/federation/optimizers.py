"""A site's optimizer: how it is made for a round, and how its state is kept between rounds."""

from __future__ import annotations

import math
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, Optimizer

from harmofl.displays.profiling import is_recording, part
from harmofl.settings import TrainingSettings
from harmofl.states import State, plain_copy


def learning_rate(training: TrainingSettings, round_number: int) -> float:
    """The sites' step size in a round."""
    if training.learning_rate_schedule == "constant":
        return training.learning_rate
    return training.learning_rate * (1 + math.cos(math.pi * (round_number - 1) / training.rounds)) / 2


def build_optimizer(network: nn.Module, training: TrainingSettings, round_number: int) -> Optimizer:
    """The site's optimizer for a round, which clips gradients first if asked to."""
    optimizer: Optimizer
    if training.optimizer == "sgd":
        optimizer = SGD(
            network.parameters(),
            lr=learning_rate(training, round_number),
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
    else:
        optimizer = Adam(
            network.parameters(),
            lr=learning_rate(training, round_number),
            betas=(training.momentum, training.second_momentum),
            weight_decay=training.weight_decay,
        )
    if training.gradient_clip is not None:
        largest = training.gradient_clip
        optimizer.register_step_pre_hook(lambda *_: (clip_grad_norm_(network.parameters(), largest), None)[1])
    if is_recording():
        measure_steps(optimizer)
    return optimizer


def measure_steps(optimizer: Optimizer) -> None:
    """Let the profile know how long every step takes."""
    open_parts: list[ExitStack] = []

    def begin(*_: object) -> None:
        open_parts.append(ExitStack())
        open_parts[-1].enter_context(part("optimizer"))

    optimizer.register_step_pre_hook(begin)
    optimizer.register_step_post_hook(lambda *_: open_parts.pop().close())


def optimizer_tensors(optimizer: Optimizer) -> State:
    """The optimizer's memory as `weight.name` tensors."""
    states: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    return {
        f"{weight}.{name}": plain_copy(torch.as_tensor(value))
        for weight, values in states.items()
        for name, value in values.items()
        if value is not None
    }


@torch.no_grad()
def restore_optimizer(optimizer: Optimizer, tensors: State) -> None:
    """Put the optimizer's memory back; with no tensors it stays new."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".")
        weight = weights[int(index)]
        # The layout of the weight, without which the optimizer's fused operations fall back to slow ones.
        value = torch.empty_like(weight).copy_(tensor) if tensor.shape == weight.shape else tensor
        states.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
