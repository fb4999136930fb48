"""What a filter is: it changes a site's update before it leaves, and has its counterpart at the server.

At the site, the filters of a run take the reply to a train request one after the other (`leave`). At the server they
are taken back in the opposite order (`arrive`), so that the rest of the server sees a plain reply. What a filter keeps
at the site lies in the site's store with the round, as pieces' memories do: it is exact after a crash, and a reply that
never counted leaves no trace in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from harmofl.federation.messages import Reply, Request
from harmofl.states import State


class BadUpdateError(Exception):
    """A reply that no filter of the run can have made; the text is the reason that the server records."""


@dataclass(frozen=True)
class Expected:
    """Tensors like those that a reply must hold: names, shapes and types, with any values."""

    state: Mapping[str, Tensor]
    sent: Mapping[str, Tensor]
    """All that pieces may send; of each piece, all of it or nothing comes."""


@dataclass
class Departure:
    """One reply to a train request on its way out, as a filter at the site sees it."""

    site: str
    request: Request
    """What was asked, with the state that the site received."""
    seed: int | None
    """Of the run, in a simulation. None at a hospital, where chance must come from a source that nobody else knows."""
    folder: Path
    """Of the site's store, for what must outlive the rounds that are dropped."""
    kept: State = field(default_factory=dict)
    """What the filter left at this site after its last round that counted; assign to it to keep something else."""

    @property
    def received(self) -> State:
        """The entries that the site received."""
        return self.request.state


class Filter:
    """One change of a site's update: the base of all filters, and the one that changes nothing.

    A filter is frozen and holds settings only. It must be deterministic given the departure, or a round that is
    repeated after a crash would differ.

    Example:
        >>> import torch
        >>> class Halve(Filter):
        ...     name = "halve"
        ...     def leave(self, reply, departure):
        ...         start = departure.received
        ...         return replace(reply, state={n: (t + start[n]) / 2 for n, t in reply.state.items()})
        >>> request = Request("run", "train", 1, {"w": torch.tensor([0.0])})
        >>> reply = Reply("A", {"w": torch.tensor([4.0])})
        >>> Halve().leave(reply, Departure("A", request, seed=0, folder=Path())).state
        {'w': tensor([2.])}
    """

    name: ClassVar[str]
    """Under which its tensors are kept and its note travels."""

    def leave(self, reply: Reply, departure: Departure) -> Reply:
        """At the site: what leaves instead of this reply.

        Tensors must be new ones: those of the reply may be used elsewhere.
        """
        return reply

    def expect(self, expected: Expected, note: Any) -> Expected:
        """What the reply must hold after `leave`, if it must hold `expected` before.

        Args:
            expected: Before this filter.
            note: What `leave` noted in the reply; None if it noted nothing, and to ask for the largest reply that there
                can be. It came from outside: raise BadUpdateError unless it is as `leave` would have written it.
        """
        return expected

    def arrive(self, reply: Reply, request: Request) -> Reply:
        """At the server: the reply as it was before `leave`, or as near to it as the filter allows.

        Its tensors have the names, shapes and types of `expect` and finite values. Raise BadUpdateError if it still
        cannot have come from `leave`.
        """
        return reply

    def noted(self, reply: Reply, note: Any) -> Reply:
        """The reply with this filter's note, a JSON value, for its counterpart at the server."""
        return replace(reply, notes={**reply.notes, self.name: note})
