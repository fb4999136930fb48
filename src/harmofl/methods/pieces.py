"""What a piece of a method keeps at its site, sends to the server and receives from it: one channel for all pieces.

A round at a site goes like this. Every piece receives what it kept and what the server combined (`receive`). It is
called before the first step (`start`) and after the last one (`finish`). What stands in its memory's `kept` is written
to the site's store with the round, so that it is exact after a crash; what stands in `sent` travels with the update.
The server combines what the sites sent (`combine`), and every site receives the result with the next request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from harmofl.methods.bound import Bound
from harmofl.methods.combinations import Combination, Mean
from harmofl.methods.model import Model
from harmofl.states import State


@dataclass
class Memory:
    """What one piece has at one site, as named tensors; the names are the piece's own choice."""

    kept: State = field(default_factory=dict)
    """What it left at this site after the site's last round; empty at first. Assign to it to keep something else."""
    received: State = field(default_factory=dict)
    """What the server combined from all sites; empty until there is something."""
    sent: State = field(default_factory=dict)
    """What travels with this round's update: all that `sends` announced, or nothing."""
    scratch: State = field(default_factory=dict)
    """From `start` to `finish` only."""


@dataclass(frozen=True)
class LocalRound:
    """One round at one site, as a piece sees it."""

    number: int
    """From 1."""
    model: Model
    """As received when the round starts, as trained when it finishes."""
    initial_weights: Sequence[Tensor]
    """Copies of the network's trainable weights before the first step, in the order of `parameters()`."""
    learning_rate: float
    """Of the site's optimizer in this round."""
    memory: Memory
    """The piece's own."""
    num_steps: int = 0
    """Steps made; known when the round finishes."""
    num_rounds: int = 0
    """Of the whole run, if it is not stopped earlier."""


class Piece:
    """A part of a method that may have state: the base of penalties, steps with state, harmonizations and adaptations.

    A piece without state overrides nothing of this. Pieces are frozen: what changes from round to round stands in
    their memory.

    Example:
        >>> import torch
        >>> class CountRounds(Piece):
        ...     def finish(self, local):
        ...         local.memory.kept = {"count": local.memory.kept.get("count", torch.zeros(())) + 1}
    """

    combine: ClassVar[type[Combination]] = Mean
    """How the server combines what the sites sent: `Mean`, `Total`, `Accumulated` or `Gathered`."""

    personal: ClassVar[bool] = False
    """Whether `use` changes the model, so that every site ends with one of its own."""

    @property
    def measures_first(self) -> bool:
        """Whether `measure` is called at every site before the first round."""
        return False

    def sends(self, model: Model) -> State:
        """Announce what this piece may send: tensors of the names, shapes and types, with any values.

        The server accepts nothing else under the piece's name.
        """
        return {}

    def sends_in(self, round_number: int) -> bool:
        """Whether it may send something with the update of a round; 0: with the measurement before the first."""
        return round_number > 0

    def bound(self, model: Model) -> Bound | None:
        """The bound on what it sends; None: unknown, and differential privacy refuses it."""
        return None

    def could_reveal_images(self, model: Model) -> bool:
        """Whether an image could be recovered from what is sent, were it computed from very few."""
        return False

    def measure(self, model: Model, images: Iterable[Tensor], memory: Memory) -> None:
        """Look at the site's training images before the first round.

        Args:
            model: With a new harmonizer; the network plays no part yet.
            images: Batches (N, C, H, W) in [0, 1], on the model's device.
            memory: Set what is kept and sent in it.
        """

    def receive(self, model: Model, memory: Memory) -> None:
        """Put into the model what was kept and received: before training, and before the model is scored."""

    def use(self, model: Model, memory: Memory) -> None:
        """Put into the model what only its use at this site needs: before it is scored or written, not before training.

        Called after `receive`, if `personal`; the model is put back afterwards.
        """

    def start(self, local: LocalRound) -> Any:
        """Prepare a round; penalties and steps return what is called with every batch."""

    def finish(self, local: LocalRound) -> None:
        """End a round: set what is kept and sent in `local.memory`."""
