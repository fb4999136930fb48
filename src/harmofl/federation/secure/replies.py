"""What a site does in a run with secure aggregation: it answers the exchanges, and masks what it would have sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harmofl.errors import RefusalError
from harmofl.federation.filters.chain import Filters
from harmofl.federation.filters.filter import Expected
from harmofl.federation.messages import MASKED, Reply, Request
from harmofl.federation.rounds import Averaging
from harmofl.federation.secure.fixed_point import encode
from harmofl.federation.secure.roster import Exchange
from harmofl.federation.secure.session import SiteExchange
from harmofl.federation.secure.sums import SECURE, Layout, model_digest, site_weights, summands
from harmofl.methods.aggregation import StreamedSums
from harmofl.states import State


class SecureReplies:
    """Answers for one site of one run.

    Args:
        site: Its name.
        num_examples: Its training images.
        averaging: How the server would add up what it sends.
        shared: The names of the entries that travel.
        announced: Tensors like what pieces may send.
        folder: Where the site keeps what it must remember.
        consortium: A key that all sites have and the server has not; empty if there is none.
        fewest: Sites without which a sum is not unmasked: fewer do not make a round, nor the noise of its sum.
    """

    def __init__(
        self,
        site: str,
        num_examples: int,
        averaging: Averaging,
        shared: Sequence[str],
        announced: State,
        folder: Path,
        consortium: bytes,
        fewest: int,
    ) -> None:
        self.averaging = averaging
        self.shared = shared
        self.announced = announced
        self.own = SiteExchange(site, num_examples, folder, consortium, fewest)

    def answer(self, request: Request) -> Reply:
        """Answer an exchange."""
        try:
            return Reply(self.own.site, notes={SECURE: self._tell(request)})
        except ValueError as error:
            raise RefusalError(str(error)) from None

    def _tell(self, request: Request) -> Mapping[str, Any]:
        exchange, content = read_exchange(request), request.exchange
        if request.kind == "keys":
            return self.own.advertise(exchange)
        if request.kind == "shares":
            return self.own.share(exchange, content.get("roster"))
        if request.kind == "confirm":
            return self.own.confirm(exchange, content.get("survivors"))
        return self.own.unmask(exchange, content.get("survivors"), content.get("signatures"))

    def mask(self, request: Request, reply: Reply, filters: Filters) -> Reply:
        """The reply as it leaves: its tensors as one masked row of numbers.

        Filters are taken back first, as nobody could do so afterwards: what is masked is what a server would have had.
        """
        if request.kind == "train":
            like = Expected({name: request.state[name] for name in self.shared}, self.announced)
            reply = filters.arrive(reply, request, like)
        try:
            row = self._mask(request, reply)
        except ValueError as error:
            raise RefusalError(str(error)) from None
        return replace(reply, state={MASKED: torch.from_numpy(row.view(np.int64))}, sent={}, notes={})

    def _mask(self, request: Request, reply: Reply) -> np.ndarray[Any, np.dtype[np.uint64]]:
        exchange, received = read_exchange(request), request.exchange.get("shares")
        if not isinstance(received, dict) or not all(isinstance(sealed, str) for sealed in received.values()):
            raise ValueError("the shares of the other sites are missing")
        counts = self.own.counts(exchange, list(received))
        weight = site_weights(counts, self.averaging.federation)[self.own.site]
        start = {name: request.state[name] for name in self.shared} if request.kind == "train" else {}
        aggregation = self.averaging.aggregation(start)
        assert isinstance(aggregation, StreamedSums)
        sums = summands(aggregation, reply.state, weight, reply.num_steps, self.averaging.momentum)
        row = encode(Layout(start, self.announced).pack(sums, reply.sent), len(counts))
        self.own.mask(exchange, received, model_digest(request, self.shared), row)
        return row


def read_exchange(request: Request) -> Exchange:
    """Which sum a request belongs to; ValueError if it names none."""
    session, kind = request.exchange.get("session"), request.exchange.get("kind")
    if not isinstance(session, str) or not 0 < len(session) <= 64 or kind not in ("measure", "train"):
        raise ValueError("this run has secure aggregation, and the request names no session of it")
    if request.kind in ("measure", "train") and request.kind != kind:
        raise ValueError(f"a session to {kind} is used to {request.kind}")
    return Exchange(request.run, kind, request.round, session)
