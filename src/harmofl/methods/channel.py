"""The one channel for the state of all pieces: tensors under `piece.name`, at a site, on the way and at the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from harmofl.methods.combinations import Gathered, Total
from harmofl.methods.model import Model
from harmofl.methods.pieces import Memory, Piece
from harmofl.states import State, add_prefix, plain_copy, select_prefix

Pieces = Mapping[str, Piece]


def open_memories(pieces: Pieces, kept: State, combined: State) -> dict[str, Memory]:
    """Give every piece what it kept at this site and what the server combined for it, as copies of its own."""
    return {name: Memory(select_prefix(name, kept), _copy(select_prefix(name, combined))) for name in pieces}


def collect_kept(memories: Mapping[str, Memory]) -> State:
    """All that the pieces keep at the site."""
    return _copy(_join({name: memory.kept for name, memory in memories.items()}))


def collect_sent(memories: Mapping[str, Memory]) -> State:
    """All that the pieces send to the server."""
    return _copy(_join({name: memory.sent for name, memory in memories.items()}))


def announce(pieces: Pieces, model: Model) -> State:
    """All that the pieces may send, as tensors of the right names, shapes and types."""
    return _join({name: piece.sends(model) for name, piece in pieces.items()})


def expect_sent(announced: Mapping[str, Tensor], sent: Iterable[str]) -> State:
    """What a site must have sent if it sent these names: a piece sends all that it announced, or nothing."""
    present = {piece_of(name) for name in sent}
    return {name: tensor for name, tensor in announced.items() if piece_of(name) in present}


def expect_combined(pieces: Pieces, announced: Mapping[str, Tensor], received: Iterable[str]) -> State:
    """What a site must receive if it receives these names; gathered tensors end in the name of their site."""
    expected = expect_sent(announced, received)
    gathered = [name for name, piece in pieces.items() if issubclass(piece.combine, Gathered)]
    for name in [name for name in expected if piece_of(name) in gathered]:
        like = expected.pop(name)
        expected |= {other: like for other in received if other.startswith(f"{name}.")}
    return expected


class Combining:
    """One round at the server: every piece's combination takes what the sites sent."""

    def __init__(self, pieces: Pieces, combined: State, num_sites: int) -> None:
        self._combiners = {
            name: piece.combine(select_prefix(name, combined), num_sites) for name, piece in pieces.items()
        }

    def add(self, site: str, sent: State) -> None:
        """Take what one site sent."""
        for name, combiner in self._combiners.items():
            combiner.add(site, select_prefix(name, sent))

    def add_sums(self, sums: State, counts: Mapping[str, int], like: Mapping[str, Tensor]) -> None:
        """Take the sums over several sites, instead of what each of them sent.

        Args:
            sums: As `piece.name`.
            counts: How many sites sent something of each piece.
            like: Tensors of the types in which it was sent.
        """
        for name, combiner in self._combiners.items():
            if counts.get(name):
                assert isinstance(combiner, Total)
                combiner.add_sums(counts[name], select_prefix(name, sums), select_prefix(name, dict(like)))

    def value(self) -> State:
        """What every site receives."""
        return _join({name: combiner.value() for name, combiner in self._combiners.items()})


def _join(states: Mapping[str, State]) -> State:
    return {key: tensor for name, state in states.items() for key, tensor in add_prefix(name, state).items()}


def _copy(state: State) -> State:
    """Copies on the CPU, so that a piece need not care: its tensors may be live, on a device or part of a graph."""
    return {name: plain_copy(tensor) for name, tensor in state.items()}


def piece_of(name: str) -> str:
    """The piece that a tensor belongs to."""
    return name.partition(".")[0]
