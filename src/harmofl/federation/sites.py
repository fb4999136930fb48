"""The sites of a run, as the server sees them: asked together, their replies checked, failures recorded."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harmofl.errors import RunError
from harmofl.events import Watch, event_of
from harmofl.federation.checks import find_problem, without_bad_scores
from harmofl.federation.filters.chain import Filters
from harmofl.federation.filters.filter import BadUpdateError, Expected
from harmofl.federation.messages import Reply, Request
from harmofl.federation.participation import quorum
from harmofl.federation.plausible import Plausible
from harmofl.federation.round_records import record_problem
from harmofl.federation.transports import Transport, limit_replies, sort_replies
from harmofl.runs.folder import Record
from harmofl.settings.schema import FederationSettings
from harmofl.states import State, num_bytes

logger = logging.getLogger(__name__)

BYTES_PER_ENTRY = 512
"""For a tensor's name, shape and type."""
MARGIN = 2**20
"""Bytes of a reply beside its tensors: numbers, words, and the engine's own."""


@dataclass(frozen=True)
class Arrival:
    """A site's reply, as it was before its filters."""

    reply: Reply
    usable: bool
    """Otherwise its scores may still count."""
    num_bytes: int
    """Of the tensors that travelled."""


class Sites:
    """Asks the sites of a run.

    `announced`: what the method's pieces may send, as tensors of the right names, shapes and types. `plausible`: what
    numbers can be. `filters`: what updates have passed at the sites.
    """

    def __init__(
        self,
        transport: Transport,
        federation: FederationSettings,
        announced: State,
        watch: Watch,
        plausible: Plausible | None = None,
        filters: Filters | None = None,
    ) -> None:
        self.plausible = plausible
        self.filters = filters or Filters()
        self.transport = transport
        self.federation = federation
        self.announced = announced
        self.watch = watch

    def expect(self, state: State) -> None:
        """Refuse replies that are larger than one with such a state and all that pieces may send."""
        # Measurements pass no filter, and unfiltered replies may be the smaller ones.
        filtered = self.filters.expect(Expected(state, self.announced))
        sizes = [
            num_bytes(each.state, each.sent) + (len(each.state) + len(each.sent)) * BYTES_PER_ENTRY
            for each in (filtered, Expected({}, self.announced))
        ]
        limit_replies(self.transport, max(sizes) + MARGIN)

    def wait_for(self, num_sites: int) -> list[str]:
        """Wait until enough of the sites are there; return the names of all that are."""
        minimum = quorum(self.federation, num_sites)
        return sorted(self.transport.sites(minimum=minimum, timeout=self.federation.timeout))

    def ask(self, requests: Mapping[str, Request], records: list[Record], state: State) -> Iterator[Arrival]:
        """Yield all replies in the order of names.

        `state`: tensors like those that must come back from those who train or measure. Why a reply cannot be used is
        added to the records.
        """
        replies = self.transport.ask(requests, timeout=self.federation.timeout)
        for reply in sort_replies(replies, sorted(requests)):
            request, travelled = requests[reply.site], num_bytes(reply.state, reply.sent)
            expected = state if request.kind in ("train", "measure") else {}
            reply = self._take_back_filters(reply, request, expected)
            problem = find_problem(reply, request.kind, expected, self.announced, self.plausible)
            if not problem:
                yield Arrival(reply, True, travelled)
                continue
            logger.info("round %d: %s left out: %s", request.round, reply.site, problem)
            records.append(record_problem(request, reply.site, problem))
            self.watch(event_of(records[-1]))
            yield Arrival(without_bad_scores(reply, self.plausible), False, travelled)

    def _take_back_filters(self, reply: Reply, request: Request, state: State) -> Reply:
        """A reply as it was before its filters; with the reason as its error if it did not pass them."""
        if request.kind != "train" or reply.error:
            return reply
        try:
            return self.filters.arrive(reply, request, Expected(state, self.announced))
        except BadUpdateError as error:
            return replace(reply, error=str(error))

    def usable_replies(self, requests: Mapping[str, Request], records: list[Record]) -> Iterator[Reply]:
        """Yield the usable replies to requests that bring no state back."""
        return (arrival.reply for arrival in self.ask(requests, records, {}) if arrival.usable)

    def require_quorum(
        self, num_answers: int, num_sites: int, number: int, records: Sequence[Record], fewest: int = 1
    ) -> None:
        """Raise an error with every reason if too few sites gave a usable answer.

        `fewest`: sites without whose noise a sum is not private, also where fewer than all are there.
        """
        needed = max(fewest, quorum(self.federation, num_sites))
        if num_answers >= needed:
            return
        raise RunError(
            f"round {number}: {num_answers} of {num_sites} sites gave a usable answer, {needed} are needed "
            f"({list_reasons(records)}). The last checkpoint is kept: fix the cause and continue with --resume, or "
            "start again with other settings (a lower training.learning_rate, if training diverged) and another --out"
        )


def list_reasons(records: Sequence[Record]) -> str:
    """Why sites were left out, each reason once."""
    sites_by_reason: dict[str, list[str]] = {}
    for record in records:
        if "error" in record:
            sites_by_reason.setdefault(record["error"], []).append(record["site"])
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in sites_by_reason.items())
