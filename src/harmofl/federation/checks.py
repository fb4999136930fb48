"""What the server accepts from a site: exactly the named tensors it expects, and finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from harmofl.federation.messages import Kind, Reply
from harmofl.states import State


def problem_with(reply: Reply, kind: Kind, state: Mapping[str, Tensor], measurement: Mapping[str, Tensor]) -> str:
    """Say in a few words why a reply cannot be used; empty if it can."""
    return (
        reply.error
        or _mismatch(reply.state, state)
        or (_mismatch(reply.measurement, measurement) if reply.measurement else "")
        or _incomplete(reply, kind)
        or _not_finite(reply.metrics)
    )


def _mismatch(received: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    for name in expected.keys() - received.keys():
        return f"entry {name} is missing"
    for name in received.keys() - expected.keys():
        return f"entry {name} is not expected"
    for name, tensor in received.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape:
            return f"entry {name} has shape {tuple(tensor.shape)}, not {tuple(wanted.shape)}"
        if tensor.dtype != wanted.dtype:
            return f"entry {name} has type {tensor.dtype}, not {wanted.dtype}"
        if not torch.isfinite(tensor).all():
            return f"entry {name} holds NaN or infinity"
    return ""


def _incomplete(reply: Reply, kind: Kind) -> str:
    if kind == "train" and not (reply.num_examples > 0 and reply.num_steps > 0 and "train" in reply.metrics):
        return "it did not train"
    return ""


def _not_finite(metrics: Mapping[str, Any], place: str = "") -> str:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            problem = _not_finite(value, f"{place}{name} ")
            if problem:
                return problem
        elif not math.isfinite(value):
            return f"its {place}{name} is {value}"
    return ""


def in_order(replies: Iterable[Reply], sites: Sequence[str]) -> Iterator[Reply]:
    """Yield replies in the order of sites, each as soon as its turn comes: sums never depend on who was faster."""
    waiting: dict[str, Reply] = {}
    remaining = list(sites)
    for reply in replies:
        waiting[reply.site] = reply
        while remaining and remaining[0] in waiting:
            yield waiting.pop(remaining.pop(0))
    for site in remaining:
        yield waiting.get(site, Reply(site, error="no answer"))


class Mean:
    """The plain mean of the sites' measurements, whatever the sites' weights."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: State = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, measurement: Mapping[str, Tensor]) -> None:
        """Take one site's measurement; an empty one does not count."""
        if not measurement:
            return
        self.count += 1
        for name, tensor in measurement.items():
            self._dtypes[name] = tensor.dtype
            self._sums[name] = self._sums.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()

    def value(self) -> State:
        """The mean, or nothing if there was nothing."""
        return {name: (total / self.count).to(self._dtypes[name]) for name, total in self._sums.items()}
