"""Which sums a round needs, as one row of numbers: the same order at every site and at the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from harmofl.federation.bounds import largest_weight
from harmofl.federation.messages import Request
from harmofl.federation.secure.roster import to_bytes
from harmofl.methods.aggregation import StreamedSums
from harmofl.methods.channel import piece_of
from harmofl.runs.store import checksum
from harmofl.settings.schema import FederationSettings
from harmofl.states import State, add_prefix, select_prefix

STATE, SENT, COUNT = "state", "sent", "count"
SECURE = "secure"
"""Under which replies to exchanges note what they tell."""


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


def site_weights(num_examples: Mapping[str, int], federation: FederationSettings) -> dict[str, float]:
    """The sites' weights, with mean 1; every site computes its own, so that no server can single one out.

    >>> site_weights({"A": 10, "B": 30, "C": 20}, FederationSettings(weights="examples"))
    {'A': 0.5, 'B': 1.5, 'C': 1.0}
    """
    if federation.weights == "uniform":
        return dict.fromkeys(num_examples, 1.0)
    largest = largest_weight([float(count) for count in num_examples.values()], federation)
    capped = {site: min(float(count), largest) for site, count in num_examples.items()}
    mean = sum(capped[site] for site in sorted(capped)) / len(capped)
    return {site: weight / mean for site, weight in capped.items()}


def model_digest(request: Request, shared: Sequence[str]) -> str:
    """What all sites must have received alike: the entries that travel, what was combined, and the settings."""
    same = {name: request.state[name] for name in shared if name in request.state}
    return checksum(add_prefix(STATE, same) | add_prefix(SENT, request.combined), to_bytes(request.settings).decode())


def summands(aggregation: StreamedSums, site_state: State, weight: float, num_steps: int, momentum: float) -> State:
    """What one site adds to the sums of a server rule; of whole numbers, such as counters, the numbers themselves."""
    if not aggregation.state:
        return {}
    aggregation.add(site_state, weight, num_steps, momentum)
    whole = {name: tensor.double() for name, tensor in site_state.items() if name not in aggregation.sums}
    return aggregation.sums | whole
