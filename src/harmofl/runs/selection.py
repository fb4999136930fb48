"""Which round's model is kept: the one with the best mean validation score over sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

AVERAGE = "average"


@dataclass(frozen=True)
class Best:
    """A round and its score; a round scored by more sites counts before a better score of fewer."""

    round: int
    score: float
    num_sites: int

    def beats(self, other: Best | None) -> bool:
        """Whether this is better; the earlier round stays where scores are equal."""
        return other is None or (self.num_sites, self.score) > (other.num_sites, other.score)


@dataclass(frozen=True)
class Selection:
    """The best round so far: one for all sites, or one for each site where nothing is shared."""

    per_site: bool
    best: Mapping[str, Best]

    def after(self, round_number: int, scores: Mapping[str, float]) -> Selection:
        """Take the sites' validation scores of one round into account."""
        if not scores:
            return self
        mean = sum(scores[site] for site in sorted(scores)) / len(scores)
        candidates = scores if self.per_site else {AVERAGE: mean}
        best = dict(self.best)
        for key, value in candidates.items():
            candidate = Best(round_number, value, 1 if self.per_site else len(scores))
            if candidate.beats(best.get(key)):
                best[key] = candidate
        return replace(self, best=best)

    def round_for(self, site: str) -> int:
        """The round whose model a site's test score comes from."""
        key = site if self.per_site else AVERAGE
        return self.best[key].round

    def rounds(self) -> set[int]:
        """Every round that is the best of someone."""
        return {best.round for best in self.best.values()}

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"per_site": self.per_site, "best": {key: vars(best) for key, best in self.best.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Selection:
        """The selection that `to_json` wrote."""
        return cls(values["per_site"], {key: Best(**best) for key, best in values["best"].items()})
