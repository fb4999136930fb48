"""Site-level differential privacy: the whole update of a site is shortened to a length and gets noise.

Every floating-point entry that travels counts, statistics of batch norm too; a variance that noise makes negative
becomes zero. Counters of batches stay as they are: they tell no more than the number of steps, which travels anyway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harmofl.federation.filters.filter import Departure, Filter
from harmofl.federation.messages import Reply
from harmofl.federation.noise import open_noise


@dataclass(frozen=True)
class ClipAndNoise(Filter):
    """Shortens updates to a length and adds normal noise to every number.

    At a clip that no update reaches and without noise it changes nothing, not a bit.
    """

    clip: float
    """The largest Euclidean norm of an update."""
    deviation: float
    """Of the noise that this site adds to each number."""
    variances: frozenset[str] = frozenset()
    """Entries that must not be negative."""
    name = "privacy"

    def leave(self, reply: Reply, departure: Departure) -> Reply:
        """Shorten and add noise, in double precision."""
        start = departure.received
        changes = {
            name: reply.state[name].double() - start[name].double()
            for name in sorted(reply.state)
            if reply.state[name].is_floating_point()
        }
        length = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
        scale = min(1.0, self.clip / length) if length else 1.0
        if scale == 1 and not self.deviation:
            return reply
        noise = open_noise(departure.seed, departure.folder, reply.site, departure.request, self.name)
        state = dict(reply.state)
        for name, change in changes.items():
            moved = start[name].double() + scale * change + noise.normal(change, self.deviation)
            state[name] = self._valid(name, moved.to(start[name].dtype))
        return replace(reply, state=state)

    def _valid(self, name: str, tensor: Tensor) -> Tensor:
        return torch.clamp_min(tensor, 0) if name in self.variances else tensor
