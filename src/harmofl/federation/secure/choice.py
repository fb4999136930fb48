"""What becomes of a site's reply: it leaves as it is, or masked, where the settings ask for secure aggregation."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from harmofl import registry
from harmofl.errors import RefusalError
from harmofl.extras import require
from harmofl.federation.filters.chain import Filters
from harmofl.federation.messages import Reply, Request
from harmofl.federation.participation import Participation, quorum
from harmofl.federation.rounds import Averaging
from harmofl.methods.channel import announce
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.settings import Settings

EXTRA, PURPOSE = "secure", "federation.secure_aggregation = true"


class Replies(Protocol):
    """A site's side of secure aggregation, if there is any."""

    def answer(self, request: Request) -> Reply:
        """Answer an exchange."""

    def mask(self, request: Request, reply: Reply, filters: Filters) -> Reply:
        """The reply as it leaves; `filters`: those that it has passed."""


class PlainReplies:
    """Without secure aggregation."""

    def answer(self, request: Request) -> Reply:
        """Refuse it."""
        raise RefusalError(f"{request.kind}: this run has no secure aggregation")

    def mask(self, request: Request, reply: Reply, filters: Filters) -> Reply:
        """Leave it as it is."""
        return reply


def choose_replies(
    site: str, num_examples: int, method: Method, model: Model, settings: Settings, folder: Path, consortium: bytes
) -> Replies:
    """A site's side, as the settings have it; the packages that it needs are loaded only then.

    Args:
        site: Its name.
        num_examples: Its training images.
        method: Of the run.
        model: Of the run.
        settings: Of the run.
        folder: Where the site keeps what it must remember.
        consortium: A key that all sites have and the server has not; empty if there is none.
    """
    if not settings.federation.secure_aggregation:
        return PlainReplies()
    require(EXTRA, PURPOSE)
    from harmofl.federation.secure.replies import SecureReplies

    shared, announced = method.shares(model.network), announce(method.pieces(), model)
    averaging = Averaging.of(method, model, settings)
    sites = registry.tasks.find(settings.task).participants(method, settings.data)
    fewest = quorum(settings.federation, len(Participation.of(settings).asked(sites, 1)))
    return SecureReplies(site, num_examples, averaging, shared, announced, folder, consortium, fewest)
