"""Several experiments of one plan in one table: a line per method, a column per experiment, averages only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from harmofl.experiments.results import Results
from harmofl.reporting.table_formats import markdown_escape
from harmofl.reporting.tables import MISSING, MethodScores, methods_of

ARROW = " → "


def overview_table(experiments: Sequence[Results], variations: Sequence[str]) -> str:
    """The table in Markdown, with a note below it; a line that has no complete number is left out.

    `variations`: shown side by side in one field, such as shared and own statistics.
    """
    planned = [{cell.label for cell in results.experiment.cells} for results in experiments]
    lines = [_averages(results) for results in experiments]
    rows = dict.fromkeys(row.name for results in experiments for row in results.experiment.plan.rows)
    table = {
        row: [_field(line, labels, row, variations) for line, labels in zip(lines, planned, strict=True)]
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
    runs, seeds = results.lines(), len(results.experiment.plan.seeds)
    return {method.label: method for method in (methods_of(runs) if runs else ()) if len(method.runs) == seeds}


def _field(found: Mapping[str, MethodScores], planned: AbstractSet[str], row: str, variations: Sequence[str]) -> str:
    """The averages of a row under each variation that it is planned for."""
    labels = [label for label in [f"{row}, {variation}" for variation in variations] or [row] if label in planned]
    texts = [f"{found[label].average:.2f}" if label in found else MISSING for label in labels]
    return ARROW.join(texts) if set(texts) - {MISSING} else MISSING


def _note(experiments: Sequence[Results], variations: Sequence[str]) -> str:
    seeds = sorted({len(results.experiment.plan.seeds) for results in experiments})
    order = f"{ARROW.join(variations)}. " if len(variations) > 1 else ""
    return f"{order}Averages over sites and {' or '.join(map(str, seeds))} seeds, in percent; {MISSING}: not run yet."
