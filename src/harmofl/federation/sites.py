"""The sites of a run, as the server sees them: asked together, their replies checked, failures recorded."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence

from harmofl.errors import RunError
from harmofl.events import Watch, event_of
from harmofl.federation.checks import find_problem, without_bad_scores
from harmofl.federation.messages import Reply, Request
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


class Sites:
    """Asks the sites of a run.

    `announced`: what the method's pieces may send, as tensors of the right names, shapes and types. `plausible`: what
    numbers can be.
    """

    def __init__(
        self,
        transport: Transport,
        federation: FederationSettings,
        announced: State,
        watch: Watch,
        plausible: Plausible | None = None,
    ) -> None:
        self.plausible = plausible
        self.transport = transport
        self.federation = federation
        self.announced = announced
        self.watch = watch

    def expect(self, state: State) -> None:
        """Refuse replies that are larger than one with such a state and all that pieces may send."""
        num_entries = len(state) + len(self.announced)
        expected = num_bytes(state, self.announced) + num_entries * BYTES_PER_ENTRY
        limit_replies(self.transport, expected + MARGIN)

    def wait_for(self, num_sites: int) -> list[str]:
        """Wait until enough of the sites are there; return the names of all that are."""
        minimum = quorum(self.federation, num_sites)
        return sorted(self.transport.sites(minimum=minimum, timeout=self.federation.timeout))

    def ask(self, requests: Mapping[str, Request], records: list[Record], state: State) -> Iterator[tuple[Reply, bool]]:
        """Yield all replies in the order of names, and whether they can be used; scores of the others may still count.

        `state`: tensors like those that must come back from training. Why a reply cannot be used is added to the
        records.
        """
        replies = self.transport.ask(requests, timeout=self.federation.timeout)
        for reply in sort_replies(replies, sorted(requests)):
            request = requests[reply.site]
            expected = state if request.kind == "train" else {}
            problem = find_problem(reply, request.kind, expected, self.announced, self.plausible)
            if not problem:
                yield reply, True
                continue
            logger.info("round %d: %s left out: %s", request.round, reply.site, problem)
            records.append(record_problem(request, reply.site, problem))
            self.watch(event_of(records[-1]))
            yield without_bad_scores(reply, self.plausible), False

    def usable_replies(self, requests: Mapping[str, Request], records: list[Record]) -> Iterator[Reply]:
        """Yield the usable replies to requests that bring no state back."""
        return (reply for reply, usable in self.ask(requests, records, {}) if usable)

    def require_quorum(self, num_answers: int, num_sites: int, number: int, records: Sequence[Record]) -> None:
        """Raise an error with every reason if too few sites gave a usable answer."""
        needed = quorum(self.federation, num_sites)
        if num_answers >= needed:
            return
        raise RunError(
            f"round {number}: {num_answers} of {num_sites} sites gave a usable answer, {needed} are needed "
            f"({list_reasons(records)}). The last checkpoint is kept: mend the cause and go on with --resume, or start "
            "again with other settings (a lower training.learning_rate, if training diverged) and another --out"
        )


def list_reasons(records: Sequence[Record]) -> str:
    """Why sites were left out, each reason once."""
    sites_by_reason: dict[str, list[str]] = {}
    for record in records:
        if "error" in record:
            sites_by_reason.setdefault(record["error"], []).append(record["site"])
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in sites_by_reason.items())


def quorum(federation: FederationSettings, num_sites: int) -> int:
    """How many sites make a round."""
    return max(1, math.ceil(federation.quorum * num_sites))
