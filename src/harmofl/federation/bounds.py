"""How far one site can move a round: answers are held until all are known, compared with each other, then added up."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from harmofl.displays.profiling import timed
from harmofl.federation.messages import Reply, Request
from harmofl.federation.waiting import Waiting
from harmofl.methods.aggregation import Aggregation
from harmofl.methods.bound import Bound
from harmofl.methods.channel import Combining
from harmofl.settings.schema import FederationSettings
from harmofl.states import State, num_bytes, select_prefix

WEIGHTS, BUFFERS = "weights", "buffers"
FARTHEST, FARTHEST_OTHERS = 100.0, 10_000.0
"""How many times the median a site's weights may change, and its statistics and what its pieces send."""
FEWEST_SITES = 3
"""Of fewer, nobody can say which one is the outlier."""
OUTSIDE = 1.1
"""How far from grey images a measurement may lie, as a part of what is possible: images may reach a little too far."""
LARGEST_HELD = 2**30
"""Bytes of answers that are held, most of them on disk; of more, the first ones are added up before all are known."""

Lengths = dict[str, float]
"""How far a site's weights, statistics and the tensors of each piece moved: Euclidean norms by name."""


@dataclass(frozen=True)
class Answer:
    """What is known about a site's reply while it waits."""

    site: str
    weight: float
    """How much it counts."""
    lengths: Lengths
    nbytes: int


@dataclass(frozen=True)
class Verdict:
    """What became of a round's answers."""

    left_out: Mapping[str, str]
    """Why a site does not count in this round."""
    shortened: Mapping[str, float]
    """To which part of its length a site's update was shortened."""


@dataclass
class BoundedRound:
    """Takes the answers of a round in the order of names, and adds up what one site may contribute.

    With `clip_updates` unset and sites that count alike, sums are those of all answers, bit for bit, unless a site is
    left out.
    """

    aggregation: Aggregation
    combining: Combining
    federation: FederationSettings
    momentum: float
    requests: Mapping[str, Request] = field(default_factory=dict)
    expected: State = field(default_factory=dict)
    """Tensors like those of a reply."""
    possible: Mapping[str, Bound] = field(default_factory=dict)
    """Where what pieces measure of images must lie, where that is known and no noise hides it."""
    _held: deque[Answer] = field(default_factory=deque)
    _num_held: int = 0
    """Bytes."""
    _waiting: Waiting = field(default_factory=Waiting)
    _lengths: dict[str, Lengths] = field(default_factory=dict)
    _added: set[str] = field(default_factory=set)
    _inside: dict[str, dict[str, bool]] = field(default_factory=dict)
    """For each piece and site, whether it measured what images can give."""

    @timed("aggregation")
    def add(self, reply: Reply) -> None:
        """Take one answer."""
        weight = float(reply.num_examples) if self.federation.weights == "examples" else 1.0
        answer = Answer(reply.site, weight, self._measure(reply), num_bytes(reply.state, reply.sent))
        self._lengths[reply.site] = answer.lengths
        self._look_at_measurements(reply)
        self._held.append(answer)
        self._num_held += answer.nbytes
        self._waiting.put(reply)
        while not self._needs_all and self._num_held > LARGEST_HELD:
            first = self._held.popleft()
            self._num_held -= first.nbytes
            self._add_up(self._waiting.take(first.site), first.weight)

    @timed("aggregation")
    def finish(self) -> Verdict:
        """Add up the answers that count; say which do not, and which were shortened."""
        left_out, limits = self._outliers() | self._impossible(), self._limits()
        counted = [answer for answer in self._held if answer.site not in left_out]
        largest = largest_weight([answer.weight for answer in counted], self.federation)
        shortened = {}
        for answer in counted:
            scales = {name: limits[name] / length for name, length in answer.lengths.items() if length > limits[name]}
            reply = self._waiting.take(answer.site)
            if scales:
                shortened[answer.site] = min(scales.values())
                reply = self._shorten(reply, scales)
            self._add_up(reply, min(answer.weight, largest))
        return Verdict(left_out, shortened)

    def longest(self) -> str:
        """The site whose weights moved farthest, in words."""
        site = max(sorted(self._lengths), key=lambda name: self._lengths[name].get(WEIGHTS, 0.0))
        median = self._medians().get(WEIGHTS, 0.0)
        times = f", {self._lengths[site][WEIGHTS] / median:.3g} times the median" if median else ""
        return f"the longest update is that of {site}{times}"

    @property
    def _needs_all(self) -> bool:
        counts_examples = self.federation.weights == "examples" and self.federation.largest_share < 1
        return self.federation.clip_updates is not None or counts_examples

    def _add_up(self, reply: Reply, weight: float) -> None:
        if reply.num_steps:  # a measurement has none, and no state
            self.aggregation.add(reply.state, weight, reply.num_steps, self.momentum)
        self.combining.add(reply.site, reply.sent)
        self._added.add(reply.site)

    # --- lengths -----------------------------------------------------------------------------------------------

    def _measure(self, reply: Reply) -> Lengths:
        start, trainable = self.aggregation.state, self.aggregation.trainable
        changes = {name: reply.state[name].double() - start[name].double() for name in self.aggregation.floating}
        parts = {
            WEIGHTS: [change for name, change in changes.items() if name in trainable],
            BUFFERS: [change for name, change in changes.items() if name not in trainable],
        }
        for name, tensor in reply.sent.items():
            parts.setdefault(_piece_of(name), []).append(tensor.double())
        lengths = {name: _norm(tensors) for name, tensors in parts.items() if tensors}
        if WEIGHTS in lengths:  # as the rule counts them: of a site that says fewer steps, each moves it farther
            lengths[WEIGHTS] /= self.aggregation.rule.effective_steps(reply.num_steps, self.momentum)
        return lengths

    def _medians(self) -> Lengths:
        """The median length of each part over the sites that have it, where there are enough and it is not zero."""
        found: dict[str, list[float]] = {}
        for lengths in self._lengths.values():
            for name, length in lengths.items():
                found.setdefault(name, []).append(length)
        medians = {name: statistics.median(each) for name, each in found.items() if len(each) >= FEWEST_SITES}
        return {name: median for name, median in medians.items() if median > 0}

    def _outliers(self) -> dict[str, str]:
        """Sites so far from all others that no honest training explains it; those added up already stay."""
        reasons, medians = self._moved_alone(), self._medians()
        for site, lengths in self._lengths.items():
            for name, median in medians.items():
                farthest, times = FARTHEST if name == WEIGHTS else FARTHEST_OTHERS, lengths.get(name, 0.0) / median
                if times > farthest and site not in self._added:
                    reasons[site] = (
                        f"an outlier: its {_in_words(name)} {times:.3g} times as far as the median of the sites' "
                        f"(at most {farthest:g} is plausible)"
                    )
        return reasons

    def _moved_alone(self) -> dict[str, str]:
        """Sites that changed statistics which most others did not touch, such as fixed ones: no median is a measure."""
        changed = {site: lengths[BUFFERS] for site, lengths in self._lengths.items() if BUFFERS in lengths}
        if len(changed) < FEWEST_SITES or statistics.median(changed.values()) > 0:
            return {}
        moving = [site for site, length in changed.items() if length and site not in self._added]
        return dict.fromkeys(moving, "an outlier: its update moves the buffers, which most sites left as they were")

    def _look_at_measurements(self, reply: Reply) -> None:
        for piece, bound in self.possible.items():
            if sent := select_prefix(piece, reply.sent):
                distance = _norm([sent[name].double() - centre.double() for name, centre in bound.centre.items()])
                self._inside.setdefault(piece, {})[reply.site] = distance <= OUTSIDE * bound.radius

    def _impossible(self) -> dict[str, str]:
        """Sites that measured what no image gives, where most others have images like that."""
        reasons: dict[str, str] = {}
        for piece, inside in self._inside.items():
            if 2 * sum(inside.values()) > len(inside):
                lying = [site for site, is_inside in inside.items() if not is_inside and site not in self._added]
                reasons |= dict.fromkeys(lying, f"an outlier: no image in [0, 1] gives what its {piece} measured")
        return reasons

    def _limits(self) -> Lengths:
        """The largest length of each part; none where updates are not clipped."""
        clip, medians = self.federation.clip_updates, self._medians()
        names = {name for lengths in self._lengths.values() for name in lengths}
        return {name: clip * medians[name] if clip and name in medians else math.inf for name in names}

    def _shorten(self, reply: Reply, scales: Mapping[str, float]) -> Reply:
        start, trainable, state = self.aggregation.state, self.aggregation.trainable, dict(reply.state)
        for name in self.aggregation.floating:
            scale = scales.get(WEIGHTS if name in trainable else BUFFERS)
            if scale is not None:
                state[name] = _between(start[name], state[name], scale)
        sent = {name: _times(tensor, scales.get(_piece_of(name))) for name, tensor in reply.sent.items()}
        return replace(reply, state=state, sent=sent)


def largest_weight(weights: Sequence[float], federation: FederationSettings) -> float:
    """The most that one site's images may count for: with a largest share of a half, as much as all others together."""
    share = federation.largest_share
    if federation.weights != "examples" or share == 1 or len(weights) < FEWEST_SITES:
        return math.inf
    others = sum(sorted(weights)[:-1])
    return share / (1 - share) * others


def all_finite(*states: State) -> bool:
    """Whether there are nothing but finite numbers."""
    return all(bool(torch.isfinite(tensor).all()) for state in states for tensor in state.values())


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors))


def _between(start: Tensor, end: Tensor, scale: float) -> Tensor:
    return (start.double() + scale * (end.double() - start.double())).to(end.dtype)


def _times(tensor: Tensor, scale: float | None) -> Tensor:
    return tensor if scale is None else (scale * tensor.double()).to(tensor.dtype)


def _piece_of(name: str) -> str:
    return f"sent by {name.partition('.')[0]}"


def _in_words(name: str) -> str:
    if name in (WEIGHTS, BUFFERS):
        return "update moves the weights" if name == WEIGHTS else "update moves the buffers"
    return f"tensors {name} reach"
