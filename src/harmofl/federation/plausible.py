"""Which numbers a site can have found: steps that fit its images, and scores within their range under known names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harmofl.federation.messages import Reply
from harmofl.settings import Settings, TrainingSettings
from harmofl.tasks.task import Task

LARGEST_VALUE = 1e15
"""Of a number without a range of its own, such as a loss."""
LEEWAY = 1e-6
MOST_NAMES = 64
OF_TRAINING = {"loss", "drift", "seconds", "epsilon"}


@dataclass(frozen=True)
class Plausible:
    """What the server expects of the numbers in a site's replies."""

    training: TrainingSettings
    ranges: Mapping[str, tuple[float, float]]
    """The lowest and highest value of every score that is known."""
    closed: bool = True
    """Whether there can be no others."""
    pooled: bool = False
    """Whether one site holds the images of all: its batches may be larger."""

    @classmethod
    def of(cls, task: Task, settings: Settings, pooled: bool = False) -> Plausible:
        """What a task's scorers can give."""
        ranges, closed = task.score_ranges(settings)
        return cls(settings.training, ranges, closed, pooled)

    def find_problem(self, reply: Reply) -> str:
        """Say which number nobody can have found; empty if there is none."""
        problems = [self._steps(reply)]
        for phase, values in reply.metrics.items():
            if phase == "train":
                problems.append(self._training(values))
            else:
                problems += [self._scores(f"{phase} {site}", scores) for site, scores in values.items()]
        return next((problem for problem in problems if problem), "")

    def _steps(self, reply: Reply) -> str:
        """A site makes as many steps as its images give batches; a last batch of one image joins the one before."""
        if not reply.num_steps or self.pooled:
            return ""
        epochs, size = self.training.local_epochs, self.training.batch_size
        whole = reply.num_examples // size if size > 1 else reply.num_examples - 1
        fewest, most = epochs * max(1, whole), epochs * math.ceil(reply.num_examples / size)
        if fewest <= reply.num_steps <= most:
            return ""
        return f"num_steps = {reply.num_steps}: {reply.num_examples} images make {most}"

    def _training(self, values: Mapping[str, Any]) -> str:
        for name, value in values.items():
            if name not in OF_TRAINING:
                return f"its train {name!r:.80} is no number that is known"
            if abs(value) > LARGEST_VALUE or (value < 0 and name != "loss"):
                return f"its train {name} is {value:g}"
        return ""

    def _scores(self, place: str, scores: Mapping[str, Any]) -> str:
        if len(scores) > MOST_NAMES:
            return f"{len(scores)} {place} scores: at most {MOST_NAMES} are accepted"
        for name, value in scores.items():
            if name not in self.ranges and self.closed:
                return f"its {place} {name!r:.80} is no score that is known"
            low, high = self.ranges.get(name, (-math.inf, math.inf))
            if not max(low, -LARGEST_VALUE) - LEEWAY <= value <= min(high, LARGEST_VALUE) + LEEWAY:
                return f"its {place} {name} is {value:g}, not from {low:g} to {high:g}"
        return ""
