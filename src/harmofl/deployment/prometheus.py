"""Prometheus' text format, as far as it is needed here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class Metric:
    """One figure."""

    name: str
    kind: Literal["counter", "gauge"]
    words: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value.translate(ESCAPES)}"' for name, value in self.labels)
        return f"{self.name}{{{labels}}} {self.value:.17g}\n" if labels else f"{self.name} {self.value:.17g}\n"

    @staticmethod
    def lines(metrics: Sequence[Metric]) -> Iterator[str]:
        """The lines of the page; figures of one name follow each other, after one description."""
        for name in dict.fromkeys(metric.name for metric in metrics):
            same = [metric for metric in metrics if metric.name == name]
            yield f"# HELP {name} {same[0].words}\n# TYPE {name} {same[0].kind}\n"
            yield from map(str, same)


def gauge(name: str, words: str, value: float, **labels: str) -> Metric:
    """A figure that goes up and down.

    >>> print(gauge("last_round", "The last round.", 3, party="A"), end="")
    harmofl_last_round{party="A"} 3
    """
    return Metric(f"harmofl_{name}", "gauge", words, value, tuple(labels.items()))


def counter(name: str, words: str, value: float, **labels: str) -> Metric:
    """A figure that only grows."""
    return Metric(f"harmofl_{name}", "counter", words, value, tuple(labels.items()))
