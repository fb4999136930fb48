"""Which sums a round needs, as one row of numbers: the same order at every site and at the server."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from harmofl.methods.aggregation import StreamedSums
from harmofl.methods.channel import piece_of
from harmofl.states import State, add_prefix, select_prefix

STATE, SENT, COUNT = "state", "sent", "count"


class Layout:
    """The entries of a sum: those of the network, what pieces send, and how many sites sent something of each piece.

    Args:
        state: Tensors like the entries of the network that travel; none for measurements before the first round.
        announced: Tensors like what pieces may send, as `piece.name`.
    """

    def __init__(self, state: Mapping[str, Tensor], announced: Mapping[str, Tensor]) -> None:
        counts = {piece_of(name): torch.zeros(()) for name in announced}
        entries = add_prefix(STATE, state) | add_prefix(SENT, announced) | add_prefix(COUNT, counts)
        self._shapes = {name: tuple(entries[name].shape) for name in sorted(entries)}
        self.announced = announced
        self.size = sum(prod(shape) for shape in self._shapes.values())

    def pack(self, sums: State, sent: State) -> Tensor:
        """One site's numbers in a row; pieces that sent nothing count as zeros."""
        present = {piece_of(name) for name in sent}
        filled = {name: sent.get(name, torch.zeros_like(like)) for name, like in self.announced.items()}
        counts = {piece_of(name): torch.tensor(float(piece_of(name) in present)) for name in self.announced}
        values = add_prefix(STATE, sums) | add_prefix(SENT, filled) | add_prefix(COUNT, counts)
        return torch.cat([values[name].double().flatten() for name in self._shapes])

    def unpack(self, total: Tensor) -> tuple[State, State, dict[str, int]]:
        """From the sum over sites: the sums of the network's entries, of what pieces sent, and the pieces' counts."""
        parts = torch.split(total, [prod(shape) for shape in self._shapes.values()])
        values = {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
        counts = {piece: round(float(count)) for piece, count in select_prefix(COUNT, values).items()}
        return select_prefix(STATE, values), select_prefix(SENT, values), counts


def summands(aggregation: StreamedSums, site_state: State, weight: float, num_steps: int, momentum: float) -> State:
    """What one site adds to the sums of a server rule; of whole numbers, such as counters, the numbers themselves."""
    if not aggregation.state:
        return {}
    aggregation.add(site_state, weight, num_steps, momentum)
    whole = {name: tensor.double() for name, tensor in site_state.items() if name not in aggregation.sums}
    return aggregation.sums | whole
