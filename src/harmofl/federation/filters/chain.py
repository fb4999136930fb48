"""The filters of a run in their order: clip and noise, compress, mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harmofl.federation.checks import mismatch
from harmofl.federation.filters.changes import OnlyChanges
from harmofl.federation.filters.clip_and_noise import ClipAndNoise
from harmofl.federation.filters.compression import Compression, EightBits, HalfPrecision
from harmofl.federation.filters.filter import BadUpdateError, Departure, Expected, Filter
from harmofl.federation.messages import Reply, Request
from harmofl.federation.privacy import check_site_privacy, sharing_sites, site_deviation
from harmofl.federation.private_measurements import noise_for_sites, senders
from harmofl.methods.channel import expect_sent
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.methods.sharing import running_statistics
from harmofl.settings import Settings
from harmofl.states import State, add_prefix, plain_copy, select_prefix

Choice = Callable[[Settings, Method, Model], Filter | None]
"""Makes a filter if the settings ask for it; raises a UsageError if it does not fit to the method or the network."""


def clip_and_noise(settings: Settings, method: Method, model: Model) -> Filter | None:
    """Make updates private, if asked to."""
    if settings.privacy.site_level == "none":
        return None
    check_site_privacy(settings, method, model)
    variances = frozenset(running_statistics(model.network))
    pieces = noise_for_sites(settings.privacy, senders(method, model), model, sharing_sites(settings, method))
    return ClipAndNoise(settings.privacy.site_clip, site_deviation(settings, method), variances, pieces)


def only_changes(settings: Settings, method: Method, model: Model) -> Filter | None:
    """Leave out what has not changed: it costs nothing and loses nothing."""
    return OnlyChanges()


def compression(settings: Settings, method: Method, model: Model) -> Filter | None:
    """Send changes of weights in fewer bytes, if asked to."""
    kinds: dict[str, type[Compression]] = {"float16": HalfPrecision, "int8": EightBits}
    kind = kinds.get(settings.federation.transport)
    return kind(frozenset(name for name, _ in model.network.named_parameters())) if kind else None


CHOICES: tuple[Choice, ...] = (clip_and_noise, only_changes, compression)
"""In the order in which a site applies them."""


@dataclass(frozen=True)
class Filters:
    """The filters of a run, at a site or at the server."""

    filters: tuple[Filter, ...] = ()

    @classmethod
    def chosen(cls, settings: Settings, method: Method, model: Model) -> Filters:
        """Those that the settings ask for, or an error that says why they do not fit."""
        made = (choose(settings, method, model) for choose in CHOICES)
        return cls(tuple(each for each in made if each is not None))

    @classmethod
    def at_server(cls, settings: Settings, method: Method, model: Model) -> Filters:
        """Those that the server takes back: none with secure aggregation, as sites do it before they mask."""
        return cls() if settings.federation.secure_aggregation else cls.chosen(settings, method, model)

    def leave(self, reply: Reply, request: Request, kept: State, seed: int | None, folder: Path) -> tuple[Reply, State]:
        """At a site: what leaves instead of this reply, and what the filters keep, from all that the site kept."""
        keeps: State = {}
        for each in self.filters:
            memory = select_prefix(_place(each), kept)
            departure = Departure(reply.site, request, seed, folder, memory)
            reply = each.leave(reply, departure)
            keeps |= add_prefix(_place(each), {name: plain_copy(tensor) for name, tensor in departure.kept.items()})
        return reply, keeps

    def expect(self, expected: Expected) -> Expected:
        """The largest reply that there can be."""
        for each in self.filters:
            expected = each.expect(expected, None)
        return expected

    def arrive(self, reply: Reply, request: Request, expected: Expected) -> Reply:
        """At the server: the reply as it was before the filters; BadUpdateError says why it cannot be one."""
        left = self._expect_of(reply, expected)
        problem = mismatch(reply.state, left.state) or mismatch(reply.sent, expect_sent(left.sent, reply.sent))
        if problem:
            raise BadUpdateError(problem)
        for each in reversed(self.filters):
            reply = each.arrive(reply, request)
        return replace(reply, notes={})

    def _expect_of(self, reply: Reply, expected: Expected) -> Expected:
        """What a reply with these notes must hold."""
        for name in reply.notes.keys() - {each.name for each in self.filters}:
            raise BadUpdateError(f"it notes {name!r:.80}, which is no filter of this run")
        for each in self.filters:
            expected = each.expect(expected, reply.notes.get(each.name))
        return expected


def _place(each: Filter) -> str:
    return f"filter-{each.name}"
