"""Site-level differential privacy: the whole update of a site is shortened to a length and gets noise.

Every floating-point entry that travels counts, statistics of batch norm too; a variance that noise makes negative
becomes zero. Counters of batches stay as they are: they tell no more than the number of steps, which travels anyway.
What pieces of the method send, such as a measurement before the first round, is a release of its own: shortened to the
bound that the piece states, with noise in units of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from harmofl.federation.filters.filter import Departure, Filter
from harmofl.federation.messages import Reply
from harmofl.federation.noise import open_noise, shorten_and_disturb
from harmofl.federation.private_measurements import Noised, hide


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
    pieces: Mapping[str, Noised] = field(default_factory=dict)
    """For what each piece sends."""
    name = "privacy"

    def leave(self, reply: Reply, departure: Departure) -> Reply:
        """Shorten and add noise."""
        noise = open_noise(departure.seed, departure.folder, reply.site, departure.request, self.name)
        update = {name: tensor for name, tensor in reply.state.items() if tensor.is_floating_point()}
        noisy = shorten_and_disturb(update, departure.received, self.clip, self.deviation, noise)
        sent = hide(reply.sent, self.pieces, noise)
        if noisy is update:
            return replace(reply, sent=sent)
        return replace(reply, state=reply.state | {name: self._valid(name, noisy[name]) for name in noisy}, sent=sent)

    def _valid(self, name: str, tensor: Tensor) -> Tensor:
        return torch.clamp_min(tensor, 0) if name in self.variances else tensor
