"""Methods that cannot do what they say with these settings: an error before the run starts."""

from __future__ import annotations

from harmofl.errors import UsageError
from harmofl.methods.harmonizers import Harmonization
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.methods.sharing import all_but_batch_norm, all_but_statistics
from harmofl.settings import Settings


def check_pieces(method: Method, model: Model) -> None:
    """Raise an error for a piece that measures before training, but announces nothing: no site would be asked."""
    for piece in method.pieces().values():
        if piece.measures_first and not piece.sends(model):
            raise UsageError(
                f"{method.name}: {type(piece).__name__} measures images before training, but announces nothing to "
                "send; a harmonizer's measurement() must return every tensor that sites will send from the start, with "
                "its name, shape and type, zeros for example"
            )


def check_sharing(method: Method, model: Model, settings: Settings) -> None:
    """Raise an error for a method that would silently be FedAvg: the network has nothing that a site could keep."""
    keeps_nothing = set(method.shares(model.network)) == set(model.network.state_dict())
    if keeps_nothing and method.shares in (all_but_batch_norm, all_but_statistics):
        network = f"model.network = {settings.model.network!r} with model.norm = {settings.model.norm!r}"
        raise UsageError(
            f"{network} has no layer that {method.name} keeps at the sites, so it would keep nothing there and be "
            "FedAvg; choose model.norm = 'batch', or fedavg"
        )


def check_server_rule(method: Method, settings: Settings) -> None:
    """Raise an error for a setting that a rule which sees every update would pass over."""
    if method.server_rule.needs_every_update and settings.federation.running_variances == "pooled":
        raise UsageError(
            "federation.running_variances = 'pooled': must be 'mean', as "
            f"{method.name} combines variances by its own rule"
        )


def check_participation(method: Method, settings: Settings) -> None:
    """Raise an error for an amplitude that only the few sites of the first round would have learned."""
    pieces = [piece for piece in method.pieces().values() if isinstance(piece, Harmonization)]
    if settings.federation.participation < 1 and any(piece.schedule == "first-round" for piece in pieces):
        raise UsageError(
            f"federation.participation = {settings.federation.participation}: method.schedule = 'first-round' would "
            "keep the amplitude of the sites that happen to train in round 1; choose 'before-training', which asks all "
            "of them, or 'every-round'"
        )
