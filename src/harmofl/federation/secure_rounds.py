"""The server's rounds with secure aggregation: exchanges before the sites work and after, and sums in between."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from harmofl.errors import RunError
from harmofl.extras import require
from harmofl.federation.bounds import Verdict
from harmofl.federation.checks import to_plain_text
from harmofl.federation.messages import MASKED, Kind, Reply, Request
from harmofl.federation.participation import quorum
from harmofl.federation.round_records import record_problem
from harmofl.federation.rounds import Averaging, PlainRounds, Rounds
from harmofl.federation.secure.choice import EXTRA, PURPOSE
from harmofl.federation.secure.fixed_point import decode, is_plausible
from harmofl.federation.secure.roster import FEWEST_SITES, Advert, Exchange
from harmofl.federation.secure.sums import SECURE, Layout, model_digest, site_weights
from harmofl.federation.sites import Sites, list_reasons
from harmofl.federation.transports import sort_replies
from harmofl.methods.aggregation import Aggregation, StreamedSums
from harmofl.methods.channel import Combining
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.runs.folder import Record
from harmofl.settings import Settings
from harmofl.states import State

if TYPE_CHECKING:
    from harmofl.federation.secure.unmasking import Unmasking

logger = logging.getLogger(__name__)

Told = TypeVar("Told")
GO_ON = "The last checkpoint is kept: fix the cause and continue with --resume"


def choose_rounds(method: Method, model: Model, settings: Settings, sites: Sites, num_sites: int) -> Rounds:
    """The server's rounds: plain, or with secure aggregation; `num_sites`: of the run."""
    averaging = Averaging.of(method, model, settings, num_sites)
    if not settings.federation.secure_aggregation:
        return PlainRounds(averaging)
    require(EXTRA, PURPOSE)
    return SecureRounds(sites, averaging, method.shares(model.network))


@dataclass(frozen=True)
class SecureRounds:
    """Opens rounds whose updates the server never sees, only their sum."""

    sites: Sites
    averaging: Averaging
    shared: Sequence[str]

    def open(
        self, requests: Mapping[str, Request], records: list[Record], start: State, combined: State
    ) -> SecureRound:
        """Let the sites exchange keys and shares; those who did are asked to work, with a session in their request.

        Requests that bring no update, such as to score a model, stay as they are.
        """
        working = {site: request for site, request in requests.items() if request.kind in ("train", "measure")}
        some = next(iter(working.values()))
        exchange = Exchange(some.run, some.kind, some.round, secrets.token_hex(16))
        unmasking = self._collect_keys(exchange, working, records)
        prepared = self._collect_shares(unmasking, working, records)
        own = self.averaging
        return SecureRound(
            sites=self.sites,
            unmasking=unmasking,
            layout=Layout(start, self.sites.announced),
            averaging=own,
            working=prepared,
            requests=prepared | {site: request for site, request in requests.items() if site not in working},
            expected=self.largest(start),
            aggregation=own.aggregation(start),
            combining=own.combining(combined),
            model=model_digest(some, self.shared),
            fewest=quorum(self.sites.federation, len(working)),
        )

    def largest(self, start: State) -> State:
        """One row of integers of 64 bits; it takes no memory here."""
        return {MASKED: torch.zeros(1, dtype=torch.int64).expand(Layout(start, self.sites.announced).size)}

    def _collect_keys(self, exchange: Exchange, requests: Mapping[str, Request], records: list[Record]) -> Unmasking:
        told = self._ask("keys", exchange, requests, {site: {} for site in requests}, records, Advert.read)
        self._require(len(told), FEWEST_SITES, "told their keys", exchange, records)
        from harmofl.federation.secure.unmasking import Unmasking  # its packages are an extra

        return Unmasking.of(exchange, told)

    def _collect_shares(
        self, unmasking: Unmasking, requests: Mapping[str, Request], records: list[Record]
    ) -> dict[str, Request]:
        """Ask for shares; return the requests of the sites that made them, with the shares that are for each."""
        roster = unmasking.roster
        content = {site: {"roster": roster.to_json()} for site in roster.adverts}

        def check(made: Any) -> None:
            if not isinstance(made, dict) or not all(isinstance(sealed, str) for sealed in made.values()):
                raise ValueError("its shares are missing")
            if len(made) != len(content) - 1 or not made.keys() <= content.keys():
                raise ValueError("it did not make one share for each other site")

        made = self._ask("shares", roster.exchange, requests, content, records, check)
        self._require(len(made), roster.threshold, "made their shares", roster.exchange, records)
        return {
            site: replace(
                requests[site],
                exchange=name_session(roster.exchange)
                | {"shares": {sender: shares[site] for sender, shares in made.items() if sender != site}},
            )
            for site in made
        }

    def _ask(
        self,
        kind: Kind,
        exchange: Exchange,
        requests: Mapping[str, Request],
        content: Mapping[str, Mapping[str, Any]],
        records: list[Record],
        check: Any,
    ) -> dict[str, Any]:
        """What each site tells in an exchange; a site that fails, or tells nonsense, is left out with its reason."""
        asked = {site: ask_to(kind, exchange, requests[site], content[site]) for site in content}
        told = {}
        for reply in self.sites.usable_replies(asked, records):
            try:
                check(reply.notes.get(SECURE))
            except ValueError as error:
                records.append(record_problem(asked[reply.site], reply.site, to_plain_text(str(error))))
                continue
            told[reply.site] = reply.notes[SECURE]
        return told

    def _require(self, found: int, needed: int, what: str, exchange: Exchange, records: Sequence[Record]) -> None:
        if found < needed:
            raise RunError(
                f"round {exchange.round}: {found} sites {what}, secure aggregation needs {needed} "
                f"({list_reasons(records)}). {GO_ON}"
            )


@dataclass
class SecureRound:
    """Adds up masked rows as they come, then has the sum unmasked."""

    sites: Sites
    unmasking: Unmasking
    layout: Layout
    averaging: Averaging
    working: Mapping[str, Request]
    requests: Mapping[str, Request]
    expected: State
    aggregation: Aggregation
    combining: Combining
    model: str
    fewest: int
    """Sites that make a round."""

    def __post_init__(self) -> None:
        self._total = np.zeros(self.layout.size, dtype=np.uint64)
        self._steps: dict[str, int] = {}

    def add(self, reply: Reply) -> None:
        """Add one masked row."""
        self._total += reply.state[MASKED].numpy().view(np.uint64)
        self._steps[reply.site] = reply.num_steps

    def finish(self) -> Verdict:
        """Unmask the sum, and hand it to the server rule and the pieces."""
        members, survivors = sorted(self.working), sorted(self._steps)
        if len(survivors) < (needed := max(self._threshold, self.fewest)):
            raise RunError(self._say(f"{len(survivors)} sites sent an update, {needed} are needed to unmask"))
        self._take_masks(members, survivors)
        total = decode(self._total)
        if not is_plausible(total):
            raise RunError(
                self._say("the masks do not cancel: a site sent wrong numbers, or sites received different models")
            )
        sums, sent, counts = self.layout.unpack(total)
        if any(name.endswith("running_var") and bool((tensor < 0).any()) for name, tensor in sums.items()):
            raise RunError(self._say("a site sent wrong numbers: the sum holds a negative variance"))
        self.combining.add_sums(sent, counts, self.sites.announced)
        if sums:
            self._hand_on(sums, members, survivors)
        return Verdict({}, {})

    def longest(self) -> str:
        """No single update is known."""
        return "with secure aggregation nobody sees whose update is the longest"

    @property
    def _threshold(self) -> int:
        return self.unmasking.roster.threshold

    def _hand_on(self, sums: State, members: Sequence[str], survivors: Sequence[str]) -> None:
        adverts = self.unmasking.roster.adverts
        weights = site_weights({site: adverts[site].num_examples for site in members}, self.averaging.federation)
        assert isinstance(self.aggregation, StreamedSums)  # rules that need more are refused before the run
        for site in survivors:
            self.aggregation.count_site(weights[site], self._steps[site], self.averaging.momentum)
        self.aggregation.add_sums(sums, len(survivors))

    def _take_masks(self, members: Sequence[str], survivors: Sequence[str]) -> None:
        """Let the survivors sign who they are, then tell their shares; a site that does not still counts in the sum."""
        content: dict[str, Any] = {"survivors": list(survivors)}
        signatures = self._ask(
            "confirm",
            content,
            survivors,
            lambda site, told: self.unmasking.read_signature(site, told, members, survivors, self.model),
            "signed who is in the sum",
        )
        revealed = self._ask(
            "unmask",
            content | {"signatures": signatures},
            list(signatures),
            lambda _, told: self.unmasking.read_revealed(told, members),
            "helped to unmask the sum",
        )
        try:
            self.unmasking.take_masks(self._total, members, survivors, revealed, self.model)
        except ValueError as error:
            raise RunError(self._say(f"the sum cannot be unmasked: {error}")) from None

    def _ask(
        self, kind: Kind, content: Mapping[str, Any], sites: Sequence[str], read: Callable[[str, Any], Told], what: str
    ) -> dict[str, Told]:
        """What sites told; an error with every reason if fewer than the threshold did."""
        exchange = self.unmasking.roster.exchange
        asked = {site: ask_to(kind, exchange, self.working[site], content) for site in sites}
        found: dict[str, Told] = {}
        reasons: dict[str, str] = {}
        replies = self.sites.transport.ask(asked, timeout=self.sites.federation.timeout)
        for reply in sort_replies(replies, sorted(asked)):
            try:
                found[reply.site] = read(reply.site, reply.notes.get(SECURE))
            except ValueError as error:
                reasons[reply.site] = to_plain_text(reply.error or str(error))
                logger.info("round %d: %s: %s: %s", exchange.round, kind, reply.site, reasons[reply.site])
        if len(found) < self._threshold:
            listed = "; ".join(f"{site}: {reason}" for site, reason in reasons.items())
            raise RunError(self._say(f"{len(found)} sites {what}, {self._threshold} are needed ({listed})"))
        return found

    def _say(self, problem: str) -> str:
        return f"round {self.unmasking.roster.exchange.round}: {problem}. {GO_ON}"


def name_session(exchange: Exchange) -> dict[str, Any]:
    """Which sum a request belongs to, as it travels."""
    return {"session": exchange.session, "kind": exchange.kind}


def ask_to(kind: Kind, exchange: Exchange, request: Request, content: Mapping[str, Any]) -> Request:
    """A request of an exchange around another one; it carries no model."""
    return Request(
        run=request.run,
        kind=kind,
        round=request.round,
        settings=request.settings,
        exchange=name_session(exchange) | dict(content),
    )
