"""Every score: what it is called, whether high or low is better, how it is printed, and what computes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from harmofl import registry
from harmofl.registry import Kind
from harmofl.tasks.scorers import ClassificationScorer, ScorerFactory, SegmentationScorer
from harmofl.tasks.surfaces import TOLERANCE

PERCENT = "%"


@dataclass(frozen=True)
class Score:
    """What tables, figures and the selection of a round ask of a score.

    Attributes:
        name: what users call it, and its key in what its scorer returns.
        title: what tables and figures call it; the name if empty.
        higher_is_better: whether selection takes the highest.
        range: the lowest and the highest value that there can be.
        unit: what stands after a number: "%" (values from 0 to 1 are printed times 100), "pixels", or nothing.

    >>> hd95 = Score("hd95", "HD95", higher_is_better=False, range=(0, float("inf")), unit="pixels")
    >>> hd95.format(3.14159), hd95.lead(2.0, over=3.0)
    ('3.14 pixels', 1.0)
    >>> Score("dice", "Dice score").format(0.876, digits=1)
    '87.6 %'
    """

    name: str
    title: str = ""
    higher_is_better: bool = True
    range: tuple[float, float] = (0.0, 1.0)
    unit: str = PERCENT

    @property
    def words(self) -> str:
        """What tables and figures call it."""
        return self.title or self.name

    @property
    def words_with_unit(self) -> str:
        """The same with its unit, for the heading over bare numbers."""
        unit = "percent" if self.unit == PERCENT else self.unit
        return f"{self.words} in {unit}" if unit else self.words

    @property
    def gap_unit(self) -> str:
        """The unit of a difference."""
        return "points" if self.unit == PERCENT else self.unit

    def in_unit(self, value: float | None) -> float:
        """A value as the number that stands before its unit; NaN where there is none."""
        return math.nan if value is None else value * (100.0 if self.unit == PERCENT else 1.0)

    def format(self, value: float, digits: int = 2) -> str:
        """A value as text, with its unit."""
        return self.text(self.in_unit(value), digits)

    def text(self, number: float, digits: int = 1) -> str:
        """A number that is in the score's unit already, as text with its unit."""
        return f"{number:.{digits}f} {self.unit}".rstrip() if number == number else "no score"

    def gap_text(self, gap: float, signed: bool = False) -> str:
        """A difference of two numbers in the score's unit, as text: "0.4 points" of percentages."""
        number = f"{gap:{'+' if signed else ''}.1f}"
        unit = "point" if number == "1.0" and self.unit == PERCENT else self.gap_unit
        return f"{number} {unit}".rstrip().replace("-", "\N{MINUS SIGN}")

    def lead(self, value: float, over: float) -> float:
        """By how much a value is better than another one; negative if it is worse."""
        return value - over if self.higher_is_better else over - value

    def rank(self, value: float) -> float:
        """A number that is higher the better a value is, for `max`, `min` and `sorted`."""
        return self.lead(value, over=0.0)

    @property
    def better_direction(self) -> str:
        """Which way is better along a horizontal axis."""
        return "right" if self.higher_is_better else "left"

    def check(self) -> None:
        """Raise an error for values of other types than there should be."""
        ends = [end for end in self.range if type(end) in (int, float)]
        words = all(isinstance(text, str) for text in (self.name, self.title, self.unit))
        if not words or type(self.higher_is_better) is not bool or len(ends) != 2 or len(self.range) != 2:
            raise TypeError(f"{self!r:.200}")

    def to_json(self) -> dict[str, Any]:
        """Plain values for a run's summary."""
        values = {field.name: getattr(self, field.name) for field in fields(Score)}
        finite = [end if math.isfinite(end) else None for end in self.range]
        return values | {"range": finite}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Score:
        """The score that `to_json` wrote."""
        low, high = values["range"]
        ends = (-math.inf if low is None else low, math.inf if high is None else high)
        return cls(**{**values, "range": ends})


@dataclass(frozen=True, kw_only=True)
class ScoreEntry(Score):
    """A score that can be chosen by its name (`training.score`): selection goes by it, and tables show it.

    Attributes:
        name: what settings and records call it.
        title: what tables and figures call it; the name if it is empty.
        higher_is_better: which way is better.
        range: the lowest and the highest value; others are refused as wrong.
        unit: "%" shows a fraction in percent; anything else, such as "mm", stands behind the number.
        kinds: what it is for: "classification", "segmentation".
        scorer: what computes it, and possibly others: given the names of the classes, and whether slow scores are
            wanted too, it returns a `Scorer`, whose `scores()` must contain this score's name.
        slow: whether its scorer computes it only when slow scores are wanted.
        dimensions: of the images that it is for: 2, and 3 for volumes.

    >>> class ErrorScorer:
    ...     def __init__(self, classes, thorough): self.errors = []
    ...     def add(self, logits, batch): self.errors += (logits.argmax(dim=1) != batch.targets).tolist()
    ...     def scores(self): return {"error": sum(self.errors) / len(self.errors)}
    >>> entry = ScoreEntry("error", higher_is_better=False, kinds=("classification",), scorer=ErrorScorer)
    >>> entry.format(0.25)
    '25.00 %'
    """

    kinds: tuple[Kind, ...]
    scorer: ScorerFactory
    slow: bool = False
    dimensions: tuple[int, ...] = (2, 3)


def score_in(summary: Mapping[str, Any]) -> Score:
    """The score of a finished run: as its summary describes it, so that no plugin is needed, or as it is registered."""
    return Score.from_json(summary["score"]) if "score" in summary else registry.scores.find(summary["metric_name"])


def _of_classes(name: str, title: str = "") -> ScoreEntry:
    return ScoreEntry(name, title, kinds=("classification",), scorer=ClassificationScorer)


def _of_masks(name: str, title: str = "") -> ScoreEntry:
    return ScoreEntry(name, title, kinds=("segmentation",), scorer=SegmentationScorer)


accuracy, auc = _of_classes("accuracy"), _of_classes("auc", "AUC")
sensitivity, specificity = _of_classes("sensitivity"), _of_classes("specificity")
dice, dice_per_case = _of_masks("dice", "Dice score"), _of_masks("dice_per_case", "Dice per case")
dice_with_background = _of_masks("dice_with_background", "Dice score with background")
precision, recall = _of_masks("precision"), _of_masks("recall")


def _distance(name: str, title: str, unit: str, dimensions: int) -> ScoreEntry:
    return ScoreEntry(
        name,
        title,
        kinds=("segmentation",),
        scorer=SegmentationScorer,
        higher_is_better=False,
        range=(0.0, math.inf),
        unit=unit,
        slow=True,
        dimensions=(dimensions,),
    )


hd95 = _distance("hd95", "HD95", "pixels", 2)
hd95_mm, assd_mm = _distance("hd95_mm", "HD95", "mm", 3), _distance("assd_mm", "mean surface distance", "mm", 3)
surface_dice = replace(_of_masks("surface_dice", f"surface Dice at {TOLERANCE:g} mm"), slow=True, dimensions=(3,))
