"""What privacy costs: the score of every line of an experiment against the ε that its runs have spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harmofl.experiments.results import Results
from harmofl.reporting.table_formats import markdown_escape, markdown_line
from harmofl.reporting.tables import MISSING, MethodScores, methods_of
from harmofl.runs.finished import FinishedRun

LEVELS = {"site": "a site", "image": "an image"}
NOTE = (
    "ε: of all rounds and measurements together, the largest of sites and seeds; smaller promises more. Average: mean "
    "test score over sites and seeds, and by how many points it is below the first line's."
)


def epsilon_table(done: Results) -> str:
    """The table in Markdown, with a note below it; the first line is what the others are measured by."""
    methods = methods_of(done.lines())
    delta = next((run.summary["privacy"]["delta"] for run in done.runs.values() if "privacy" in run.summary), None)
    at = f" at δ = {delta:g}" if delta else ""
    headings = ["", *(f"ε of {what}{at}" for what in LEVELS.values()), f"Average {methods[0].score.words}", "lost"]
    lines = [markdown_line(headings), markdown_line(["---", *["---:"] * (len(headings) - 1)])]
    return "\n".join([*lines, *(_line(method, methods[0]) for method in methods), "", NOTE]) + "\n"


def _line(method: MethodScores, first: MethodScores) -> str:
    spent = [_spent(method.runs, level) for level in LEVELS]
    lost = MISSING if method is first else f"{first.average - method.average:.2f}"
    return markdown_line([markdown_escape(method.label), *spent, f"{method.average:.2f}", lost])


def _spent(runs: tuple[FinishedRun, ...], level: str) -> str:
    found = [run.summary.get("privacy", {}).get(level) for run in runs]
    if not any(found):
        return MISSING
    values = [value for each in found for value in (_values(each) if each else [None])]
    known = [value for value in values if value is not None]
    return f"{max(known):.3g}" if len(known) == len(values) > 0 else "no bound"


def _values(said: Mapping[str, Any]) -> list[float | None]:
    """Of a site's updates one number, of images one for each site."""
    spent = said["epsilon"]
    return list(spent.values()) or [None] if isinstance(spent, Mapping) else [spent]
