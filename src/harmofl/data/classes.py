"""The classes of a data set: labels in a manifest, or values in masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harmofl.errors import UsageError

MOST_CLASSES = 64
BLACK_AND_WHITE = {0, 1, 255}


@dataclass(frozen=True)
class Classes:
    """Names in the order of the network's outputs, and what in the data stands for them."""

    names: tuple[str, ...]
    values: Mapping[int, int]
    """From a mask's value to the place among the names."""

    @classmethod
    def of_labels(cls, labels: Iterable[str], named: Sequence[str] | None) -> Classes:
        """Of a classification: in the order given, or else sorted, numbers as numbers."""
        present = sorted(set(labels), key=_as_number)
        names = tuple(named or present)
        if len(names) > MOST_CLASSES and not named:
            hint = "are they numbers to predict? Name the ones that count with data.classes"
            raise UsageError(f"{len(names)} different labels, at most {MOST_CLASSES} are allowed: {hint}")
        if len(names) < 2:
            raise UsageError(
                f"classification needs two classes or more; the data has only {', '.join(names) or 'none'}"
            )
        return cls(names, {})

    @classmethod
    def of_masks(cls, masks: Sequence[set[int]], named: Sequence[str] | None, binary: bool) -> Classes:
        """Of a segmentation; `binary`: whatever is not zero is the one foreground class."""
        present = set().union(*masks) | {0}
        # Some masks in 0 and 1, others in 0 and 255: two ways to write the same, unless one mask holds all three.
        two_ways = present == BLACK_AND_WHITE and not any(mask >= {1, 255} for mask in masks)
        if binary and named:
            return cls(tuple(named), {value: int(value > 0) for value in present})
        if named:
            return cls(tuple(named), _values_of(named, present, two_ways))
        if len(present) > MOST_CLASSES:
            hint = "name the ones that count with data.classes"
            raise UsageError(
                f"the masks hold {len(present)} different values, at most {MOST_CLASSES} are allowed: {hint}"
            )
        if two_ways or len(present) <= 2:
            return cls(("0", str(min(present - {0}, default=1))), {value: int(value > 0) for value in present})
        ordered = sorted(present)
        return cls(tuple(map(str, ordered)), {value: place for place, value in enumerate(ordered)})

    def index(self, label: str) -> int:
        """The place of a manifest's label; -1 if it is none of the classes."""
        return self._places.get(label, -1)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def table(self, up_to: int = 0) -> list[int]:
        """From a mask's value to the place of its class, as a list; unknown values count as background."""
        table = [0] * (max(up_to, *self.values) + 1)
        for value, place in self.values.items():
            table[value] = place
        return table

    def unknown(self, values: Iterable[int]) -> list[int]:
        """The values of a mask that stand for no class."""
        return sorted(set(values) - self.values.keys())


def _values_of(named: Sequence[str], present: set[int], two_ways: bool) -> dict[int, int]:
    """The names are the values themselves, or else words for 0, 1, 2 …"""
    if all(name.isdecimal() for name in named):
        values = {int(name): place for place, name in enumerate(named)}
        black_and_white = values.keys() <= BLACK_AND_WHITE and len(named) == 2
        return {0: 0, 1: 1, 255: 1} if black_and_white else values
    if len(named) == 2 and (len(present) <= 2 or two_ways):  # 0 and 255, as pictures of masks often have
        return {value: int(value > 0) for value in present}
    return dict(enumerate(range(len(named))))


def _as_number(label: str) -> tuple[int, float, str]:
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)
