"""Which round's model is kept: the one with the best mean validation score over sites.

Two rounds are compared by the sites that scored both, so that a site that is away, or keeps its scores to itself, does
not choose the round.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

AVERAGE = "average"


@dataclass(frozen=True)
class Best:
    """A round and its score."""

    round: int
    score: float
    """The mean over sites."""
    num_sites: int
    scores: Mapping[str, float] = field(default_factory=dict)
    """Each site's; none in checkpoints of before 0.2."""


@dataclass(frozen=True)
class Selection:
    """The best round so far: one for all sites, or one for each site where nothing is shared."""

    per_site: bool
    best: Mapping[str, Best]
    higher_is_better: bool = True
    robust: bool = False
    """Whether the median over sites decides, not the mean, which a single site that lies could move anywhere."""

    def after(self, round_number: int, scores: Mapping[str, float]) -> Selection:
        """Take the sites' validation scores of one round into account."""
        if not scores:
            return self
        mean = _mean([scores[site] for site in sorted(scores)])
        candidates = scores if self.per_site else {AVERAGE: mean}
        best = dict(self.best)
        for key, value in candidates.items():
            own = {key: value} if self.per_site else dict(scores)
            candidate = Best(round_number, value, len(own), own)
            if key not in best or self._is_better(candidate, best[key]):
                best[key] = candidate
        return replace(self, best=best)

    def _is_better(self, one: Best, other: Best) -> bool:
        """By the sites that scored both, if most did, else by their number; of equal rounds, the earlier one stays."""
        common = sorted(one.scores.keys() & other.scores.keys())
        if 2 * len(common) > max(one.num_sites, other.num_sites):
            middle = statistics.median if self.robust else _mean
            first, second = (middle([each.scores[site] for site in common]) for each in (one, other))
        elif one.num_sites != other.num_sites:
            return one.num_sites > other.num_sites
        else:
            first, second = one.score, other.score
        return first > second if self.higher_is_better else first < second

    def rounds_without_improvement(self, last_scored: int) -> int:
        """How many rounds have been scored since the best one; of every site's own best, since the latest."""
        return last_scored - max(self.rounds()) if self.best else 0

    def round_for(self, site: str) -> int:
        """The round whose model a site's test score comes from."""
        key = site if self.per_site else AVERAGE
        return self.best[key].round

    def rounds(self) -> set[int]:
        """Every round that is the best of someone."""
        return {best.round for best in self.best.values()}

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {**vars(self), "best": {key: vars(best) for key, best in self.best.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Selection:
        """The selection that `to_json` wrote."""
        return cls(**{**values, "best": {key: Best(**best) for key, best in values["best"].items()}})


def _mean(scores: list[float]) -> float:
    return sum(scores) / len(scores)
