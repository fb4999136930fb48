"""What a page shows of runs in numbers and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harmofl.reporting import comparisons
from harmofl.reporting.comparisons import Comparison
from harmofl.reporting.tables import MethodScores, methods_of
from harmofl.reporting.words import is_level, rank_methods
from harmofl.runs.finished import FinishedRun
from harmofl.settings import flatten


@dataclass(frozen=True)
class Number:
    """A number at the top of the page."""

    value: str
    label: str


def headline(runs: Sequence[FinishedRun]) -> list[Number]:
    """Pick the two leading averages and the gap between them, in the order that the runs came in."""
    leading = rank_methods(runs)[:2]
    shown = [method for method in methods_of(runs) if method in leading]
    numbers = [Number(method.score.text(method.average), method.label) for method in shown]
    if len(leading) == 2 and not is_level(leading[0].average, leading[1].average):
        gap = abs(leading[0].average - leading[1].average)
        numbers.append(Number(leading[0].score.gap_text(gap), f"{leading[0].label} ahead"))
    return numbers


def show_comparison(comparison: Comparison) -> dict[str, Any]:
    """A comparison as the page shows it."""
    return {
        "comparison": comparison,
        "points": comparisons.signed_text(comparison.difference),
        "tests": [(p, comparisons.p_text(p)) for p in (comparison.sign_flip_p, comparison.wilcoxon_p)],
    }


@dataclass(frozen=True)
class Unseen:
    """A score at a hospital that took no part."""

    label: str
    seed: int
    site: str
    score: float
    note: str


def unseen_scores(runs: Sequence[FinishedRun]) -> list[Unseen]:
    """The scores at hospitals that took no part, unless the table of scores is of them already."""
    return [
        Unseen(method.label, run.seed, site, run.score.in_unit(scores["metric"]), scores.get("note", ""))
        for method in methods_of(runs)
        for run in method.runs
        for site, scores in (run.summary.get("unseen") or {}).items()
        if site not in run.scores
    ]


@dataclass(frozen=True)
class Cost:
    """What a method took, over its seeds."""

    label: str
    rounds: str
    selected: str
    minutes: float
    megabytes: float | None
    failed: int


def costs_of(runs: Sequence[FinishedRun]) -> list[Cost]:
    """What each method cost; nothing where a line of the table is made of several runs, and so has no records."""
    return [_cost(method) for method in methods_of(runs)] if any(run.records for run in runs) else []


def _cost(method: MethodScores) -> Cost:
    records = [record for run in method.runs for record in run.records]
    updates = [record for record in records if record["phase"] == "train" and record["site"] != "server"]
    sent = [record["bytes_up"] + record["bytes_down"] for record in updates if "bytes_up" in record]
    rounds = [max((record["round"] for record in run.records), default=0) for run in method.runs]
    seconds = [run.summary.get("seconds") or 0.0 for run in method.runs]
    return Cost(
        label=method.label,
        rounds=_range(rounds),
        selected=_selected_rounds(method),
        minutes=sum(seconds) / len(seconds) / 60,
        megabytes=sum(sent) / len(sent) / 1e6 if sent and not method.is_reference else None,
        failed=sum("error" in record for record in updates),
    )


def _selected_rounds(method: MethodScores) -> str:
    chosen: list[int] = []
    for run in method.runs:
        chosen += (run.summary.get("best_rounds") or {}).values()
        if run.summary.get("best_round") is not None:
            chosen.append(run.summary["best_round"])
    return _range(chosen)


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "–"
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"


def versions_of(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """The versions of the software that made the runs."""
    each: dict[str, list[str]] = {}
    for run in runs:
        for name, version in (run.summary.get("versions") or {}).items():
            each.setdefault(name, []).append(str(version))
    return {name: ", ".join(dict.fromkeys(versions)) for name, versions in each.items()}


def _settings_of(run: FinishedRun) -> dict[str, str]:
    return {name: str(value) for name, value in flatten(run.settings).items()}


def shared_settings(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """The settings that are the same everywhere."""
    each = [_settings_of(run) for run in runs]
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each)}


def differing_settings(runs: Sequence[FinishedRun]) -> dict[str, list[str]]:
    """Per setting that is not the same everywhere, its values for each method."""
    each = [[_settings_of(run) for run in method.runs] for method in methods_of(runs)]
    shared = shared_settings(runs)
    names = [name for name in _union(settings for group in each for settings in group) if name not in shared]
    return {
        name: [", ".join(dict.fromkeys(settings.get(name, "–") for settings in group)) for group in each]
        for name in names
    }


def _union(mappings: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def shared_band(runs: Sequence[FinishedRun]) -> str | None:
    """Return the band whose amplitudes HarmoFL shared, if it ran and all its runs say the same."""
    bands = {str(run.settings.get("method", {}).get("band")) for run in runs if run.method == "harmofl"}
    return bands.pop() if len(bands) == 1 else None
