"""How the server combines what a piece of a method sent from each site, before every site receives the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from harmofl.states import State


class Combination(ABC):
    """One round at the server: takes what each site sent, in the order of the sites' names.

    `previous` is what was combined before, `num_sites` the number of sites that could send something.
    """

    def __init__(self, previous: State, num_sites: int) -> None:
        self.previous = previous
        self.num_sites = num_sites

    @abstractmethod
    def add(self, site: str, sent: Mapping[str, Tensor]) -> None:
        """Take one site's tensors; none at all is fine."""

    @abstractmethod
    def value(self) -> State:
        """What every site receives; what it was before, if nobody sent anything."""


class Total(Combination):
    """The sum over the sites that sent something in this round.

    Sums run in double precision, one site at a time: memory does not grow with the number of sites.

    >>> total = Total({}, num_sites=2)
    >>> total.add("A", {"count": torch.tensor(3.0)})
    >>> total.add("B", {"count": torch.tensor(4.0)})
    >>> total.value()
    {'count': tensor(7.)}
    """

    def __init__(self, previous: State, num_sites: int) -> None:
        super().__init__(previous, num_sites)
        self.count = 0
        self.sums: State = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, site: str, sent: Mapping[str, Tensor]) -> None:
        """Add one site's tensors."""
        if not sent:
            return
        self.count += 1
        for name, tensor in sent.items():
            self._dtypes[name] = tensor.dtype
            self.sums[name] = self.sums.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()

    def add_sums(self, count: int, sums: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
        """Add the sums over several sites; `like`: tensors of the types in which they were sent."""
        self.count += count
        for name, tensor in sums.items():
            self._dtypes[name] = like[name].dtype
            self.sums[name] = self.sums.get(name, torch.zeros((), dtype=torch.float64)) + tensor

    def value(self) -> State:
        """The result in the type of what was sent."""
        if not self.count:
            return self.previous
        return {name: self.result(name, total).to(self._dtypes[name]) for name, total in self.sums.items()}

    def result(self, name: str, total: Tensor) -> Tensor:
        """The sum."""
        return total


class Mean(Total):
    """The plain mean over the sites that sent something in this round, whatever the sites' weights."""

    def result(self, name: str, total: Tensor) -> Tensor:
        """The sum divided by the number of sites that sent something."""
        return total / self.count


class Accumulated(Total):
    """What was combined before, plus this round's sum divided by the number of all sites.

    For sites that send changes: a site that misses a round changes nothing. A site whose reply is lost after it has
    trained goes back to what it kept before, so that both sides stay in step.
    """

    def result(self, name: str, total: Tensor) -> Tensor:
        """One more round on top of what was there."""
        before = self.previous.get(name)
        return total / self.num_sites + (0 if before is None else before.double())


class Gathered(Combination):
    """Every site's own values, each under `name.SITE`; a site that misses a round keeps its earlier values."""

    def __init__(self, previous: State, num_sites: int) -> None:
        super().__init__(previous, num_sites)
        self._values = dict(previous)

    def add(self, site: str, sent: Mapping[str, Tensor]) -> None:
        """Take one site's values, in place of those it sent before."""
        self._values |= {f"{name}.{site}": tensor for name, tensor in sent.items()}

    def value(self) -> State:
        """All sites' values."""
        return self._values
