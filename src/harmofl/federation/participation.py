"""Who trains in a round, and which rounds' models are scored: all, unless `federation.participation` says otherwise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

from harmofl.settings import FederationSettings, Settings


@dataclass(frozen=True)
class Participation:
    """Draws the sites of a round from the run's seed and the round alone, so that a resumed run draws the same.

    Every model that is scored is scored by all sites, those that do not train included: the best round is chosen among
    rounds whose scores are of the same images.
    """

    part: float
    """Of the sites, asked in each round."""
    every: int
    """Rounds from one scored model to the next; the last model of a run is always scored."""
    seed: int

    @classmethod
    def of(cls, settings: Settings) -> Participation:
        """As the settings have it; with no `evaluate_every`, a site scores about as often as it trains."""
        part, every = settings.federation.participation, settings.federation.evaluate_every
        return cls(part, every or max(1, round(1 / part)), settings.seed)

    def asked(self, sites: Iterable[str], number: int) -> list[str]:
        """The sites that train in a round, at least one, in the order of their names.

        Those with the smallest hashes are drawn: whatever the order in which sites came, and independently in every
        round.

        >>> Participation(0.5, 1, seed=0).asked(["C", "A", "D", "B"], 1)
        ['B', 'D']
        >>> Participation(0.5, 1, seed=0).asked(["C", "A", "D", "B"], 2)
        ['B', 'C']
        """
        there = sorted(sites)
        count = math.ceil(round(self.part * len(there), 9))  # 0.1 of 30 sites are 3, not 3.0000000000000004
        return sorted(sorted(there, key=lambda site: self._hash(site, number))[: max(1, count)])

    def is_scored(self, number: int) -> bool:
        """Whether every site scores the model of a round when the next one begins."""
        return number > 0 and number % self.every == 0

    def last_scored(self, number: int) -> int:
        """The newest round up to one whose model is scored; 0 if none is."""
        return number // self.every * self.every

    def _hash(self, site: str, number: int) -> bytes:
        return hashlib.sha256(f"{self.seed}/{number}/{site}".encode()).digest()


def quorum(federation: FederationSettings, num_sites: int) -> int:
    """How many of the sites that are asked make a round."""
    return max(1, math.ceil(federation.quorum * num_sites))
