"""Changes of weights in fewer bytes: half precision, or eight bits with what is lost kept for the next round.

Only trainable weights are compressed. Statistics of batch norm, integers and what pieces send are few, and exact: a
variance must not become negative. Every compressed tensor is the change since the state that the site received, in
units of a scale; the scales of all tensors travel as one vector, in the order of the tensors' names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from harmofl.federation.filters.filter import Departure, Expected, Filter
from harmofl.federation.messages import Reply, Request
from harmofl.states import State

LARGEST_CODE = 127
"""Of eight bits, symmetric around zero."""
LARGEST_HALF = 15
"""Changes are scaled so that the largest lies below two to this power; half precision ends before the next one."""


@dataclass(frozen=True)
class Compression(Filter):
    """The base of both: which entries are compressed, how the scales travel, and how changes are restored."""

    weights: frozenset[str]
    """Names of the trainable weights."""
    dtype: ClassVar[torch.dtype]

    @abstractmethod
    def scales_of(self, change: Tensor) -> Tensor:
        """One scale for each slice of a change (`num_scales`), as float32; zero where nothing has changed."""

    @abstractmethod
    def encode(self, in_units: Tensor) -> Tensor:
        """A change in units of its scale as it travels."""

    def num_scales(self, tensor: Tensor) -> int:
        """How many scales a tensor has."""
        return 1

    def leave(self, reply: Reply, departure: Departure) -> Reply:
        """Replace weights by their change."""
        codes: State = {}
        scales: list[Tensor] = []
        for name in self._names(reply.state):
            change = reply.state[name].double() - departure.received[name].double()
            scale, codes[name] = self._compress(change)
            scales.append(scale)
        return replace(reply, state=reply.state | codes | self._join(scales)) if codes else reply

    def expect(self, expected: Expected, note: Any) -> Expected:
        """Weights in the smaller type, and the scales."""
        names = self._names(expected.state)
        likes = {name: expected.state[name].to(self.dtype) for name in names}
        scales = [torch.zeros(self.num_scales(expected.state[name])) for name in names]
        return replace(expected, state={**expected.state, **likes, **self._join(scales)})

    def arrive(self, reply: Reply, request: Request) -> Reply:
        """Add the changes to what the site received."""
        codes = {name: tensor for name, tensor in reply.state.items() if name != self._place}
        names = self._names(codes)
        if not names:
            return reply
        counts = [self.num_scales(codes[name]) for name in names]
        scales = zip(names, torch.split(reply.state[self._place], counts), strict=True)
        weights = {name: self.restored(request.state[name], codes[name], scale) for name, scale in scales}
        return replace(reply, state=codes | weights)

    def restored(self, start: Tensor, code: Tensor, scale: Tensor) -> Tensor:
        """A weight as the server knows it: the same bits wherever it is computed."""
        units = scale.double().reshape(-1, *[1] * (code.ndim - 1)) if code.ndim else scale.double()[0]
        return (start.double() + code.double() * units).to(start.dtype)

    def _compress(self, change: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.scales_of(change)
        shape = (-1, *[1] * (change.ndim - 1)) if change.ndim else ()
        units = scale.double().reshape(shape)
        return scale, self.encode(torch.where(units > 0, change / units.clamp_min(torch.finfo(torch.double).tiny), 0))

    def _names(self, state: Collection[str]) -> list[str]:
        return sorted(self.weights.intersection(state))

    def _join(self, scales: list[Tensor]) -> State:
        return {self._place: torch.cat(scales)} if scales else {}

    @property
    def _place(self) -> str:
        return f"{self.name}:scales"


@dataclass(frozen=True)
class HalfPrecision(Compression):
    """Changes as float16, which keeps eleven significant bits of each.

    The scale of a tensor is a power of two, so that it costs no bits: the largest change is brought to the upper end of
    half precision. So nothing overflows, and only changes 2^29 times smaller than the largest begin to lose bits.
    """

    name = "float16"
    dtype = torch.float16

    def scales_of(self, change: Tensor) -> Tensor:
        """The power of two that brings the largest change below two to the fifteenth."""
        largest = change.abs().max().reshape(1) if change.numel() else torch.zeros(1).double()
        _, exponent = torch.frexp(largest)
        scale = torch.ldexp(torch.ones(1).double(), exponent - LARGEST_HALF).float()
        return torch.where(largest > 0, scale, 0.0)

    def encode(self, in_units: Tensor) -> Tensor:
        """Round to the nearest."""
        return in_units.half()


@dataclass(frozen=True)
class EightBits(Compression):
    """Changes as int8 with one scale for each output channel, and error feedback (Seide et al., Interspeech 2014).

    What a round loses by rounding is kept at the site and added to its next change, so that the sum over rounds is
    right to one rounding. Rounding is to the nearest, not stochastic: the error is half as large at most, feedback
    already removes its bias, and no chance enters that a repeated round would have to repeat.
    """

    name = "int8"
    dtype = torch.int8

    def num_scales(self, tensor: Tensor) -> int:
        """One for each slice of the first dimension; vectors have one in all."""
        return tensor.shape[0] if tensor.ndim > 1 else 1

    def scales_of(self, change: Tensor) -> Tensor:
        """The largest change of each slice becomes the largest code."""
        slices = change.abs().reshape(self.num_scales(change), -1)
        largest = slices.amax(dim=1) if slices.numel() else torch.zeros(len(slices)).double()
        return (largest / LARGEST_CODE).float()

    def encode(self, in_units: Tensor) -> Tensor:
        """Round to the nearest; a scale was rounded too, so that the largest may lie a little above."""
        return in_units.round().clamp(-LARGEST_CODE, LARGEST_CODE).to(torch.int8)

    def leave(self, reply: Reply, departure: Departure) -> Reply:
        """Compress the change and what was lost before; keep what is lost now."""
        wanted = {
            name: reply.state[name].double() + departure.kept.get(name, torch.zeros(())).double()
            for name in self._names(reply.state)
        }
        left = super().leave(replace(reply, state=reply.state | wanted), departure)
        departure.kept = departure.kept | self._lost(wanted, self.arrive(left, departure.request).state)
        return left

    @staticmethod
    def _lost(wanted: Mapping[str, Tensor], restored: Mapping[str, Tensor]) -> State:
        return {name: (tensor - restored[name].double()).float() for name, tensor in wanted.items()}
