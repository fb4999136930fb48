"""What a method is: six independent pieces, combined as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any

from pydantic import ValidationError

from harmofl.errors import UsageError, describe, unknown_name
from harmofl.methods.adaptations import Adaptation, SiteStatistics, as_received
from harmofl.methods.harmonizers import Harmonization, identity
from harmofl.methods.penalties import Penalty
from harmofl.methods.pieces import Piece
from harmofl.methods.server_rules import Average, ServerRule
from harmofl.methods.sharing import OwnEntries, Sharing, everything
from harmofl.methods.steps import RoundStep, Step, descend
from harmofl.registry import key_of

STEP = "step"
OWN = "own"
"""Under this name a site keeps the entries of the network that do not travel."""


@dataclass(frozen=True)
class Where:
    """What a method requires of a run only if other settings have certain values.

    Args:
        values: Those settings, as {"section.name": value}.
        requires: What it then requires, in the same form.
    """

    values: Mapping[str, Any]
    requires: Mapping[str, Any]

    def __str__(self) -> str:
        return f"with {_listed(self.values)}: {_listed(self.requires)}"


@dataclass(frozen=True)
class Method:
    """A federated method: a name and six pieces.

    The fields of the pieces are the method's settings: `Proximity(mu=0.01)` gives it a setting `mu`.

    Args:
        name: What tables call it; in lower case, with hyphens, what users type.
        harmonizer: Makes the layer that images pass before the network.
        penalties: Terms added to the task's loss.
        step: How a batch changes the weights.
        shares: From the network to the names of its entries that travel; the others stay at each site.
        adapt: What a site does with a model before it uses it on its own images.
        server_rule: How the server combines the sites' updates.
        paper: Where it was published.
        idea: One sentence.
        limit: When the method is FedAvg.
        defaults: Settings of the run that it wants unless the user says otherwise, as {"section.name": value}.
        requires: Settings of the run without which it is not itself, in the same form.
        requires_where: The same, but only where other settings have certain values.
        pooled: Whether one site trains on the union of all images: a reference, not a federation.

    Example:
        >>> from harmofl.methods.penalties import Proximity
        >>> near = Method("Near", penalties=(Proximity(mu=0.1),), limit="mu = 0")
        >>> near.settings
        {'mu': 0.1}
        >>> near.with_settings(mu=0.5).penalties
        (Proximity(mu=0.5),)
    """

    name: str
    harmonizer: Harmonization = identity
    penalties: tuple[Penalty, ...] = ()
    step: Step | RoundStep = descend
    shares: Sharing = everything
    adapt: Adaptation = as_received
    server_rule: ServerRule = Average()
    paper: str = ""
    idea: str = ""
    limit: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    requires: Mapping[str, Any] = field(default_factory=dict)
    requires_where: tuple[Where, ...] = ()
    pooled: bool = False

    @property
    def key(self) -> str:
        """The name on the command line."""
        return key_of(self.name)

    def is_called(self, name: str) -> bool:
        """Whether a user who writes this name means this method."""
        return key_of(name) == self.key

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of all pieces with their values."""
        values: dict[str, Any] = {}
        for piece in self._all():
            for name, value in _fields(piece).items():
                if name in values:
                    raise UsageError(f"two pieces of {self.name} have a setting {name!r}: rename it in one of them")
                values[name] = value
        return values

    @property
    def usual_settings(self) -> set[str]:
        """Names of the settings whose value, and that of their alternatives, is the default of their piece's class."""
        return {name for piece in self._all() for name in _usual(piece)}

    def with_settings(self, **values: Any) -> Method:
        """The same method with other values for some of its pieces' settings."""
        for name in values.keys() - self.settings.keys():
            raise unknown_name(f"setting of {self.name}", f"method.{name}", [f"method.{n}" for n in self.settings])
        return replace(
            self,
            harmonizer=_updated(self.harmonizer, values),
            penalties=tuple(_updated(penalty, values) for penalty in self.penalties),
            step=_updated(self.step, values),
            shares=_updated(self.shares, values),
            adapt=_updated(self.adapt, values),
            server_rule=_updated(self.server_rule, values),
        )

    def complete(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The settings in a file, with defaults for those that it leaves out; other entries stay.

        Values are as the pieces hold them: a file has lists where a piece has a tuple.
        """
        known = {name: value for name, value in values.items() if name in self.settings}
        return dict(values) | self.with_settings(**known).settings

    def requirements(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """What it requires of a run with these settings, as {"section.name": value}."""
        holding = [where.requires for where in self.requires_where if where.values.items() <= run.items()]
        return {name: value for required in (self.requires, *holding) for name, value in required.items()}

    def with_statistics(self, statistics: str) -> Method:
        """The same method as it is ("method"), or with batch norm statistics that each site estimates ("site")."""
        return replace(self, adapt=SiteStatistics()) if statistics == "site" else self

    def withstands_a_site(self, clip_updates: float | None) -> bool:
        """Whether one site cannot spoil a run: updates are compared with each other, or shortened."""
        return self.server_rule.needs_every_update or clip_updates is not None

    def pieces(self) -> dict[str, Piece]:
        """The pieces that may have state at a site, under the names by which their tensors rest and travel."""
        penalties = {f"penalty-{number}": penalty for number, penalty in enumerate(self.penalties)}
        own = OwnEntries(self.shares)
        named = {"harmonizer": self.harmonizer, **penalties, STEP: self.step, OWN: own, "adapt": self.adapt}
        return {name: piece for name, piece in named.items() if isinstance(piece, Piece)}

    @property
    def is_personal(self) -> bool:
        """Whether a piece gives every site a whole model of its own to use."""
        return any(piece.personal for piece in self.pieces().values())

    def _all(self) -> tuple[Any, ...]:
        return (self.harmonizer, *self.penalties, self.step, self.shares, self.adapt, self.server_rule)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in values.items())


def _own_fields(piece: Any) -> tuple[Field[Any], ...]:
    return fields(piece) if is_dataclass(piece) and not isinstance(piece, type) else ()


def _fields(piece: Any) -> dict[str, Any]:
    return {f.name: getattr(piece, f.name) for f in _own_fields(piece)}


def _usual(piece: Any) -> set[str]:
    usual = {f.name for f in _own_fields(piece) if _is_default(f, getattr(piece, f.name))}
    alternatives = _alternatives(piece)
    return usual if alternatives <= usual else usual - alternatives


def _alternatives(piece: Any) -> set[str]:
    """Settings of a piece of which only one may be given, as its class says."""
    return set(getattr(type(piece), "alternatives", ()))


def _is_default(own: Field[Any], value: Any) -> bool:
    default = own.default if own.default_factory is MISSING else own.default_factory()
    return default is not MISSING and bool(value == default)


def _updated(piece: Any, values: Mapping[str, Any]) -> Any:
    own = _fields(piece)
    changed = {name: value for name, value in values.items() if name in own}
    if not changed:
        return piece
    chosen = _alternatives(piece) & {name for name, value in changed.items() if value is not None}
    if chosen:  # it takes the place of what the others were
        own |= dict.fromkeys(_alternatives(piece))
    try:
        return type(piece)(**(own | changed))
    except ValidationError as error:
        raise UsageError(describe(error, prefix="method.")) from None
