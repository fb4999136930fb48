"""Several experiments of one plan in one table: a line per method, a column per experiment, averages only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harmofl.experiments.results import Results
from harmofl.reporting.table_formats import markdown_escape
from harmofl.reporting.tables import MISSING, MethodScores, methods_of

ARROW = " → "


def overview_table(experiments: Sequence[Results], variations: Sequence[str]) -> str:
    """The table in Markdown, with a note below it; a line that has no complete number is left out.

    `variations`: shown side by side in one field, such as shared and own statistics.
    """
    lines = [_averages(results) for results in experiments]
    rows = dict.fromkeys(row.name for results in experiments for row in results.experiment.plan.rows)
    table = {
        row: [_field(line, results, row, variations) for line, results in zip(lines, experiments, strict=True)]
        for row in rows
    }
    shown = {row: fields for row, fields in table.items() if any(field != MISSING for field in fields)}
    titles = [markdown_escape(results.experiment.plan.title.rpartition(", ")[2]) for results in experiments]
    return "\n".join(
        [
            f"| Method | {' | '.join(titles)} |",
            f"|---|{'---:|' * len(titles)}",
            *(f"| {markdown_escape(row)} | {' | '.join(fields)} |" for row, fields in shown.items()),
            "",
            _note(experiments, variations),
            "",
        ]
    )


def _averages(results: Results) -> Mapping[str, MethodScores]:
    """The complete lines of an experiment, by their labels: one with fewer seeds than planned would mislead."""
    runs, planned = results.lines(), _planned(results)
    return {
        method.label: method
        for method in (methods_of(runs) if runs else ())
        if len(method.runs) == planned[method.label]
    }


def _planned(results: Results) -> Mapping[str, int]:
    """With how many seeds each line is to be run."""
    return Counter(cell.label for cell in results.experiment.cells)


def _field(found: Mapping[str, MethodScores], results: Results, row: str, variations: Sequence[str]) -> str:
    """The averages of a row, up to the last variation that it is planned for; fewer seeds than the plan's are told."""
    planned = _planned(results)
    labels = [f"{row}, {variation}" for variation in variations] or [row]
    while labels and labels[-1] not in planned:
        labels.pop()
    texts = [f"{found[label].average:.2f}" if label in found else MISSING for label in labels]
    if not set(texts) - {MISSING}:
        return MISSING
    plan = results.experiment.plan
    own = len(plan.seeds_of(row))
    return ARROW.join(texts) + ("" if own == len(plan.seeds) else f" ({own} seed{'s' if own > 1 else ''})")


def _note(experiments: Sequence[Results], variations: Sequence[str]) -> str:
    seeds = sorted({len(results.experiment.plan.seeds) for results in experiments})
    order = f"{ARROW.join(variations)}. " if len(variations) > 1 else ""
    return (
        f"{order}Averages over sites and {' or '.join(map(str, seeds))} seeds, or as many as a field says, in percent; "
        f"{MISSING}: not run."
    )
