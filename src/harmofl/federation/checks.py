"""What the server accepts from a site: exactly the named tensors it expects, and finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harmofl.federation.messages import Kind, Reply
from harmofl.federation.plausible import Plausible
from harmofl.methods.channel import expect_sent

LONGEST_REASON = 500
COUNTER, MOST_BATCHES = "num_batches_tracked", 16
"""Which entries count batches, and how many a step may need at most."""


def find_problem(
    reply: Reply,
    kind: Kind,
    state: Mapping[str, Tensor],
    sent: Mapping[str, Tensor],
    plausible: Plausible | None = None,
) -> str:
    """Say in a few words why a reply cannot be used; empty if it can.

    `state` and `sent`: tensors like those that are expected. `plausible`: what numbers can be.
    """
    return to_plain_text(
        reply.error
        or mismatch(reply.state, state)
        or mismatch(reply.sent, expect_sent(sent, reply.sent))
        or _incomplete(reply, kind)
        or _counted_too_far(reply, state)
        or _not_finite(reply.metrics)
        or (plausible.find_problem(reply) if plausible else "")
    )


def to_plain_text(words: str) -> str:
    """A site's words made safe for records and terminals: one line of limited length, without control characters."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words[:LONGEST_REASON])


def mismatch(received: Mapping[str, Tensor], expected: Mapping[str, Tensor], all_of_it: bool = True) -> str:
    """Say which named tensor is not as it should be; `all_of_it`: none may be missing."""
    for name in expected.keys() - received.keys() if all_of_it else ():
        return f"entry {name} is missing"
    for name in received.keys() - expected.keys():
        return f"entry {name} is not expected"
    for name, tensor in received.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape:
            return f"entry {name} has shape {tuple(tensor.shape)}, not {tuple(wanted.shape)}"
        if tensor.dtype != wanted.dtype:
            return f"entry {name} has type {tensor.dtype}, not {wanted.dtype}"
    for name, tensor in () if _all_finite(received.values()) else received.items():
        if not torch.isfinite(tensor).all():
            return f"entry {name} holds NaN or infinity"
    for name, tensor in received.items():
        if name.endswith("running_var") and (tensor < 0).any():
            return f"entry {name} holds a negative variance"
    return ""


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity: one look at all of them, as models have hundreds of small ones."""
    floats = [tensor for tensor in tensors if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex())]
    return not floats or bool(torch.isfinite(torch.stack(torch._foreach_norm(floats, torch.inf))).all())


def _incomplete(reply: Reply, kind: Kind) -> str:
    if kind == "train" and not (reply.num_examples > 0 and reply.num_steps > 0 and "train" in reply.metrics):
        return "it did not train"
    return ""


def _counted_too_far(reply: Reply, state: Mapping[str, Tensor]) -> str:
    """Batch norm counts its batches, and the largest number of all sites is the next model's."""
    for name in sorted(name for name in reply.state if name.endswith(COUNTER)):
        counted = int((reply.state[name].double() - state[name].double()).abs().max())
        if counted > MOST_BATCHES * reply.num_steps:
            return f"entry {name} has counted {counted} batches in {reply.num_steps} steps"
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


def without_bad_scores(reply: Reply, plausible: Plausible | None = None) -> Reply:
    """Of a reply that cannot be used otherwise: its scores, if they are whole."""
    scores = {phase: reply.metrics[phase] for phase in ("val", "test") if phase in reply.metrics}
    only_scores = replace(reply, num_steps=0, metrics=scores)
    bad = _not_finite(scores) or (plausible.find_problem(only_scores) if plausible else "")
    return replace(reply, metrics={} if bad else scores)
