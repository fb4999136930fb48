"""What secure aggregation cannot do, as it knows sums only: an error before the run starts."""

from __future__ import annotations

from harmofl.errors import UsageError
from harmofl.extras import require
from harmofl.federation.secure.choice import EXTRA, PURPOSE
from harmofl.federation.secure.roster import FEWEST_SITES
from harmofl.methods.combinations import Total
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.settings import Settings


def check_secure_aggregation(method: Method, model: Model, settings: Settings, num_sites: int) -> None:
    """Raise an error if the run needs something of a single update.

    Args:
        method: Of the run.
        model: Of the run.
        settings: Of the run.
        num_sites: How many sites train in a round.
    """
    if not settings.federation.secure_aggregation:
        return
    reason = _too_few(method, num_sites) or _needs_more_than_sums(method, model, settings)
    if reason:
        raise UsageError(f"{PURPOSE}: {reason}")
    require(EXTRA, PURPOSE)


def _needs_more_than_sums(method: Method, model: Model, settings: Settings) -> str:
    if method.server_rule.needs_every_update:
        return f"{method.name} compares single updates, and the server would know their sum only"
    for piece in method.pieces().values():
        sums_suffice = issubclass(piece.combine, Total) and piece.combine.add is Total.add
        if not sums_suffice and piece.sends(model):
            return f"{method.name} hands every site's own values on ({type(piece).__name__}), and a sum has none"
    if settings.federation.clip_updates is not None:
        return "federation.clip_updates must be unset, as it compares the lengths of single updates"
    if settings.federation.transport != "float32":
        return (
            f"federation.transport = {settings.federation.transport!r} must be 'float32': a masked number takes 64 "
            "bits, however few it had before"
        )
    if not method.shares(model.network):
        return f"nothing travels with {method.name}, so there is nothing to add up"
    return ""


def _too_few(method: Method, num_sites: int) -> str:
    if method.pooled:
        return f"{method.name} has a single site, and nothing to add up"
    if num_sites >= FEWEST_SITES:
        return ""
    return (
        f"{num_sites} sites train in a round, and at least {FEWEST_SITES} must: fewer could tell each other's updates"
    )
