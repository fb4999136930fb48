"""Only changed entries travel: what a site has left as it received it need not be sent back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harmofl.federation.filters.filter import BadUpdateError, Departure, Expected, Filter
from harmofl.federation.messages import Reply, Request


class OnlyChanges(Filter):
    """Leaves out the entries whose every bit is as it was received, and names them; the server fills them in.

    They are named so that an entry that is merely missing is still an error.
    """

    name = "unchanged"

    def leave(self, reply: Reply, departure: Departure) -> Reply:
        """Drop what is equal to what was received; no note if there is nothing to drop."""
        same = [name for name, tensor in reply.state.items() if same_bits(tensor, departure.received[name])]
        if not same:
            return reply
        state = {name: tensor for name, tensor in reply.state.items() if name not in set(same)}
        return self.noted(replace(reply, state=state), same)

    def expect(self, expected: Expected, note: Any) -> Expected:
        """All entries but those that are named."""
        if note is None:
            return expected
        names = set(note) if isinstance(note, list) and all(isinstance(name, str) for name in note) else set()
        if not names or len(names) < len(note) or names - expected.state.keys():
            raise BadUpdateError("what it calls unchanged are not entries that it received")
        return replace(expected, state={name: like for name, like in expected.state.items() if name not in names})

    def arrive(self, reply: Reply, request: Request) -> Reply:
        """Fill in what the site received."""
        unchanged = {name: request.state[name] for name in reply.notes.get(self.name, ())}
        return replace(reply, state=reply.state | unchanged) if unchanged else reply


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal bit for bit: zero and minus zero are not."""
    alike = first.dtype == second.dtype and first.shape == second.shape
    return alike and torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
