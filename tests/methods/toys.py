"""A federation in one dimension, where every round can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import SGD

from harmofl.methods.aggregation import start_aggregation
from harmofl.methods.channel import Combining, collect_kept, collect_sent, open_memories
from harmofl.methods.layers import Harmonizer
from harmofl.methods.method import STEP, Method
from harmofl.methods.model import Model
from harmofl.methods.penalties import Batch, Penalty
from harmofl.methods.pieces import LocalRound
from harmofl.states import State, snapshot

NOTHING = torch.zeros(())


class Point(nn.Module):
    """A network that is one number x."""

    def __init__(self, x: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(x, dtype=torch.float64))


class TwoWeights(nn.Module):
    """½ Σ aᵢ θᵢ² with a = (3, 2), in two weights: its gradient at (1, 2) is (3, 4), of norm 5."""

    def __init__(self, first: float = 1.0, second: float = 2.0) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor(first, dtype=torch.float64))
        self.second = nn.Parameter(torch.tensor(second, dtype=torch.float64))

    def loss(self) -> Tensor:
        return (3 * self.first.square() + 2 * self.second.square()) / 2

    @property
    def values(self) -> list[float]:
        return [self.first.item(), self.second.item()]


class Parabolas:
    """Sites with the losses a/2 · (x − b)², which train with plain gradient descent."""

    def __init__(self, method: Method, sites: Sequence[tuple[float, float]], steps: int, rate: float) -> None:
        self.method = method
        self.sites = dict(zip("ABCDEFGH", sites, strict=False))
        self.steps = steps
        self.rate = rate
        self.x = 0.0
        self.combined: State = {}
        self.kept: dict[str, State] = {site: {} for site in self.sites}
        self.memory: State = {}
        self.number = 0

    def round(self, answering: str | None = None) -> float:
        """One round of all sites, or of those named; return the global x."""
        self.number += 1
        start = {"x": torch.tensor(self.x, dtype=torch.float64)}
        aggregation = start_aggregation(self.method.server_rule, start, ["x"])
        combining = Combining(self.method.pieces(), self.combined, len(self.sites))
        for site in answering or self.sites:
            state, sent = self._train(site)
            aggregation.add(state, 1.0, self.steps, 0.0)
            combining.add(site, sent)
        answered = len(answering or self.sites) / len(self.sites)
        state, self.memory = aggregation.finish(self.memory, 1.0, answered)
        self.combined, self.x = combining.value(), float(state["x"])
        return self.x

    def _train(self, site: str) -> tuple[State, State]:
        curvature, minimum = self.sites[site]
        model = Model(Harmonizer(), Point(self.x))  # type: ignore[arg-type]
        optimizer = SGD(model.parameters(), lr=self.rate)
        pieces, memories = self.method.pieces(), open_memories(self.method.pieces(), self.kept[site], self.combined)
        weights = list(model.parameters())
        initial = [weight.detach().clone() for weight in weights]
        views = {name: LocalRound(self.number, model, initial, self.rate, memories[name]) for name in pieces}
        started = {name: piece.start(views[name]) for name, piece in pieces.items()}
        terms = [started[name] for name, piece in pieces.items() if isinstance(piece, Penalty)]
        step = started.get(STEP, self.method.step)

        def loss() -> Tensor:
            own = curvature / 2 * (weights[0] - minimum) ** 2
            return own + sum(term(Batch(weights, NOTHING, NOTHING)) for term in terms if term)

        for _ in range(self.steps):
            step(model.network, optimizer, loss)
        for name, piece in pieces.items():
            piece.finish(replace(views[name], num_steps=self.steps))
        self.kept[site] = collect_kept(memories)
        return snapshot(model.network), collect_sent(memories)
