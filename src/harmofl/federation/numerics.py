"""How a site computes its training passes: in which precision, and whether the network is compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from harmofl.errors import UsageError
from harmofl.settings import TrainingSettings

Forward = Callable[[Tensor], Tensor]

MOST_SHAPES = 64
"""Shapes of batches that one process compiles code for; torch's own limit of 8 would leave sites uncompiled."""


class Numerics:
    """The precision and the code of a network's training passes; weights, losses and scores are in float32.

    Every shape of a batch gets code of its own, so that results never depend on which shape came first.
    """

    def __init__(self, network: nn.Module, training: TrainingSettings, device: torch.device) -> None:
        self._device = device
        self._is_mixed = training.precision == "bfloat16"
        self.forward: Forward = compiled(network) if training.compile else network
        """The network; what is compiled is no part of it, so the names of its entries stay."""

    def autocast(self) -> AbstractContextManager[object]:
        """For the forward pass."""
        return torch.autocast(self._device.type, torch.bfloat16) if self._is_mixed else nullcontext()

    def widen(self, outputs: Tensor) -> Tensor:
        """Outputs of the network for a loss, in single precision again."""
        return outputs.float() if self._is_mixed else outputs


def compiled(network: nn.Module) -> Forward:
    """The network's forward pass as machine code, which is made when a shape is first seen."""
    from torch._dynamo import config
    from torch._dynamo.exc import TorchDynamoException

    config.recompile_limit = max(config.recompile_limit, MOST_SHAPES)
    run: Forward = torch.compile(network, dynamic=False)

    def forward(inputs: Tensor) -> Tensor:
        try:
            return run(inputs)
        except TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(f"training.compile = true: the network cannot be compiled here: {reason}") from error

    return forward


def check_compiler(training: TrainingSettings, device: torch.device) -> None:
    """Raise an error if compilation is wanted and there is no compiler."""
    if training.compile and (missing := missing_compiler(device)):
        raise UsageError(f"training.compile = true: {missing}; install one, or leave the setting out")


def missing_compiler(device: torch.device) -> str:
    """What torch.compile would miss for a device; empty if nothing."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    if device.type == "cuda":
        return "" if has_triton() else "there is no Triton here for CUDA"
    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return "there is no C++ compiler here (g++, or what CXX names)"
    return ""
