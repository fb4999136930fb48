"""Problems of one kind together, so that many of one do not hide the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harmofl.data.samples import Problem

SHOWN = 3
"""Problems of one kind that are named."""

_PARTICULARS = (
    (re.compile(r"^(image|mask) .+?: (?=[a-z])"), r"\1 …: "),  # a manifest's row names the file that it is about
    (re.compile(r"(\(its image: |the same image as |where ).*"), r"\1…"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "…"),
    (re.compile(r"^(label|patient) .*?(?= is )"), r"\1 …"),
    (re.compile(r"[\d.]+( x [\d.]+)+|\S*\d\S*"), "…"),
)
"""What differs between problems of one kind, and what stands for it."""


@dataclass(frozen=True)
class ProblemGroup:
    """Problems of one kind, in their order."""

    kind: str
    """The message, without what is particular to one file."""
    problems: tuple[Problem, ...]

    @property
    def fatal(self) -> bool:
        """Whether training is refused because of them."""
        return self.problems[0].fatal

    @property
    def shown(self) -> tuple[Problem, ...]:
        """The first few; all of them where only one more would be left out."""
        return self.problems[: SHOWN if len(self.problems) > SHOWN + 1 else SHOWN + 1]

    @property
    def num_more(self) -> int:
        """How many are not shown."""
        return len(self.problems) - len(self.shown)


def group_by_kind(problems: Iterable[Problem]) -> list[ProblemGroup]:
    """Problems of the same kind together, in the order of the first of each."""
    groups: dict[tuple[bool, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.fatal, kind_of(problem.message)), []).append(problem)
    return [ProblemGroup(kind, tuple(members)) for (_, kind), members in groups.items()]


def kind_of(message: str) -> str:
    """A message without the names and numbers that tell one file from another."""
    for particular, instead in _PARTICULARS:
        message = particular.sub(instead, message)
    return message


def summarize(problems: Sequence[Problem], most: int) -> str:
    """One problem of each kind in a line, up to so many kinds, with how many more there are."""
    groups = group_by_kind(problems)
    parts = []
    for group in groups[:most]:
        others = len(group.problems) - 1
        parts.append(f"{group.problems[0]}{f' (and {others} more like it)' if others else ''}")
    left = sum(len(group.problems) for group in groups[most:])
    return "; ".join(parts) + (f"; and {left} more" if left else "")
