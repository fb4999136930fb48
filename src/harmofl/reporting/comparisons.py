"""Is a difference between two methods more than noise? Paired tests over sites and seeds.

Both tests ask how often a difference at least as large would come up if every pair could as well have come out the
other way round. All sign patterns are counted while pairs are few, so that the p-values are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from harmofl.errors import unknown_name
from harmofl.reporting.table_formats import markdown_escape
from harmofl.reporting.tables import MethodScores

MOST_EXACT_PAIRS = 20
"""A million sign patterns; above, as many are drawn at random."""

FEWEST_PAIRS = 6
"""Below, not even pairs that all agree reach p < 0.05."""

LEVEL = 0.05

ROUNDING = 6e-6
"""Points by which a difference of two scores, which are single precision, can be off."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """One method against another, paired by site and seed."""

    label: str
    baseline: str
    num_pairs: int
    num_ahead: int
    """Pairs in which the method is ahead."""
    difference: float
    """How much better it is, as mean over pairs: in points of a percentage, else in the score's unit."""
    sign_flip_p: float
    wilcoxon_p: float
    unit: str = "points"

    @property
    def more_than_noise(self) -> bool:
        """Whether both tests rule out chance, with enough pairs to do so."""
        return self.num_pairs >= FEWEST_PAIRS and max(self.sign_flip_p, self.wilcoxon_p) < LEVEL

    @property
    def verdict(self) -> str:
        """The answer in words."""
        if self.num_pairs < FEWEST_PAIRS:
            return "too few pairs to tell"
        return "more than noise" if self.more_than_noise else "this could be noise"

    @property
    def sentence(self) -> str:
        """The whole comparison in words."""
        difference = f"{signed_text(self.difference)} {self.unit}".rstrip()
        return (
            f"{self.label} against {self.baseline}: {difference}, ahead in {self.num_ahead} of "
            f"{self.num_pairs} pairs (sign-flip test {p_text(self.sign_flip_p)}, Wilcoxon signed-rank test "
            f"{p_text(self.wilcoxon_p)}): {self.verdict}."
        )


NOTE = (
    "Pairs share site and seed. Both tests are two-sided; the seeds of one site are not independent, and nothing is "
    "corrected for the number of comparisons."
)


def compare(method: MethodScores, baseline: MethodScores) -> Comparison | None:
    """Compare two methods where both have scores; None if they share no site and seed."""
    differences = paired_differences(method, baseline)
    if not differences.size:
        return None
    return Comparison(
        label=method.label,
        baseline=baseline.label,
        num_pairs=differences.size,
        num_ahead=int((differences > 0).sum()),
        difference=float(differences.mean()),
        sign_flip_p=sign_flip_p(differences),
        wilcoxon_p=wilcoxon_p(differences),
        unit=method.score.gap_unit,
    )


Place = tuple[str, str]
"""The row and the variation that a line of a table is of."""


def compare_with(
    reference: str, baseline: str, methods: Sequence[MethodScores], places: Mapping[str, Place]
) -> list[Comparison]:
    """Compare each line with the reference row under the same variation, and that row with itself under the baseline.

    places: of every line, by its label
    """
    if reference not in (rows := list(dict.fromkeys(row for row, _ in places.values()))):
        raise unknown_name("reference", reference, rows)
    lines = {places[method.label]: method for method in methods}
    comparisons = []
    for (row, variation), method in lines.items():
        other = lines.get((reference, baseline if row == reference else variation))
        if other and other is not method and (comparison := compare(method, other)):
            comparisons.append(comparison)
    return comparisons


def paired_differences(method: MethodScores, baseline: MethodScores) -> Values:
    """How much better the method is, for every site and seed that both have; rounding makes no two sizes differ."""
    others = {run.seed: run.scores for run in baseline.runs}
    pairs = [
        method.score.lead(value, over=others[run.seed].get(site, math.nan))
        for run in method.runs
        if run.seed in others
        for site, value in run.scores.items()
    ]
    differences = np.array(pairs, dtype=np.float64)
    return with_equal_sizes(differences[~np.isnan(differences)])


def with_equal_sizes(differences: Values) -> Values:
    """Give differences whose sizes differ only by rounding the same size; the smallest become zero."""
    sizes = np.abs(differences)
    order = np.argsort(sizes)
    steps = np.diff(sizes[order], prepend=0.0)
    levels = np.empty(sizes.size, dtype=np.int64)
    levels[order] = np.cumsum(steps > 3 * ROUNDING)  # two equal ones lie 2 apart at most; level 0 begins at zero
    means = [0.0, *(sizes[levels == level].mean() for level in range(1, levels.max(initial=0) + 1))]
    merged: Values = np.sign(differences) * np.array(means)[levels]
    return merged


def sign_flip_p(differences: Values) -> float:
    """The share of all sign patterns whose mean is at least as far from zero."""
    observed = abs(differences.sum())
    slack = ROUNDING * differences.size  # sums that are equal differ by rounding
    if differences.size <= MOST_EXACT_PAIRS:
        return float((np.abs(_all_signed_sums(differences)) >= observed - slack).mean())
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(2**16, differences.size))
    extreme = int((np.abs(signs @ differences) >= observed - slack).sum())
    return (1 + extreme) / (1 + len(signs))


def _all_signed_sums(values: Values) -> Values:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def wilcoxon_p(differences: Values) -> float:
    """The sign-flip test on ranks, without zeros: Wilcoxon's signed-rank test, exact with ties too."""
    nonzero = differences[differences != 0]
    return sign_flip_p(np.sign(nonzero) * rankdata(np.abs(nonzero))) if nonzero.size else 1.0


def signed_text(points: float) -> str:
    """A difference with its sign."""
    return f"{points:+.2f}".replace("-", "−")


def p_text(p: float) -> str:
    """A p-value as it reads in a sentence."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def to_markdown(comparisons: Sequence[Comparison]) -> str:
    """Comparisons as a Markdown table; nothing if there are none."""
    if not comparisons:
        return ""
    lines = [
        "| Method | against | points | ahead in | sign-flip test | Wilcoxon test | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for each in comparisons:
        ahead = f"{each.num_ahead} of {each.num_pairs} pairs"
        tests = f"{p_text(each.sign_flip_p)} | {p_text(each.wilcoxon_p)}"
        names = f"{markdown_escape(each.label)} | {markdown_escape(each.baseline)}"
        lines.append(f"| {names} | {signed_text(each.difference)} | {ahead} | {tests} | {each.verdict} |")
    return "\n".join(["**Is it more than noise?**", "", *lines, "", NOTE]) + "\n"
