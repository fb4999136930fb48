"""How the updates of a round come together: each for itself, or, with secure aggregation, as sums only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from harmofl.federation.bounds import BoundedRound, Verdict
from harmofl.federation.messages import Reply, Request
from harmofl.federation.private_measurements import bounds_of, senders
from harmofl.methods.aggregation import Aggregation, start_aggregation
from harmofl.methods.bound import Bound
from harmofl.methods.channel import Combining, Pieces
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.methods.server_rules import ServerRule
from harmofl.methods.sharing import running_statistics
from harmofl.runs.folder import Record
from harmofl.settings import Settings, TrainingSettings
from harmofl.settings.schema import FederationSettings
from harmofl.states import State


class Updates(Protocol):
    """Takes the answers of one round in the order of names."""

    @property
    def requests(self) -> Mapping[str, Request]:
        """What the sites are asked."""

    @property
    def expected(self) -> State:
        """Tensors like those that must come back from those who train or measure."""

    @property
    def aggregation(self) -> Aggregation:
        """The sums of the network's entries."""

    @property
    def combining(self) -> Combining:
        """The combinations of what pieces send."""

    def add(self, reply: Reply) -> None:
        """Take one answer."""

    def finish(self) -> Verdict:
        """Add up the answers that count; say which do not."""

    def longest(self) -> str:
        """The site whose weights moved farthest, in words."""


class Rounds(Protocol):
    """Opens round after round."""

    def open(self, requests: Mapping[str, Request], records: list[Record], start: State, combined: State) -> Updates:
        """Begin a round.

        Args:
            requests: What sites would be asked.
            records: Why a site is left out is added to them.
            start: The global state that sites receive; empty for measurements before the first round.
            combined: What was combined of what pieces sent before.
        """

    def largest(self, start: State) -> State:
        """Tensors like the largest that can come back."""


@dataclass(frozen=True)
class Averaging:
    """What the sums of a round are made with, at the server and, with secure aggregation, at a site."""

    rule: ServerRule
    pieces: Pieces
    trainable: frozenset[str]
    pooled: Mapping[str, str]
    momentum: float
    num_sites: int
    federation: FederationSettings
    possible: Mapping[str, Bound] = field(default_factory=dict)
    """Where what pieces measure of images must lie, where that is known and no noise hides it."""

    @classmethod
    def of(cls, method: Method, model: Model, settings: Settings, num_sites: int = 0) -> Averaging:
        """As method and settings have it; `num_sites`: of the run, where pieces' tensors are combined."""
        pools = settings.federation.running_variances == "pooled"
        return cls(
            rule=method.server_rule,
            pieces=method.pieces(),
            trainable=frozenset(name for name, _ in model.network.named_parameters()),
            pooled=running_statistics(model.network) if pools else {},
            momentum=momentum_of(settings.training),
            num_sites=num_sites,
            federation=settings.federation,
            possible={} if settings.privacy.is_on else bounds_of(senders(method, model), model),
        )

    def aggregation(self, start: State) -> Aggregation:
        """The sums of the network's entries."""
        return start_aggregation(self.rule, start, self.trainable, self.pooled)

    def combining(self, previous: State) -> Combining:
        """The combinations of what pieces send."""
        return Combining(self.pieces, previous, self.num_sites)


@dataclass(frozen=True)
class PlainRounds:
    """The server sees every update, and bounds what one site can do."""

    averaging: Averaging

    def open(self, requests: Mapping[str, Request], records: list[Record], start: State, combined: State) -> Updates:
        """Ask as it is."""
        own = self.averaging
        return BoundedRound(
            own.aggregation(start),
            own.combining(combined),
            own.federation,
            own.momentum,
            requests,
            self.largest(start),
            own.possible,
        )

    def largest(self, start: State) -> State:
        """The state itself."""
        return start


def momentum_of(training: TrainingSettings) -> float:
    """SGD's momentum; with Adam a step counts as one, which is our choice."""
    return training.momentum if training.optimizer == "sgd" else 0.0
