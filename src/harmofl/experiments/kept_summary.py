"""All experiments of a page of results in one look: a line each, or one per variation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harmofl import registry
from harmofl.experiments.kept_blocks import Block, anchor
from harmofl.experiments.results import Results
from harmofl.reporting.comparisons import compare, signed_text
from harmofl.reporting.table_formats import markdown_escape
from harmofl.reporting.tables import MISSING, MethodScores, methods_of

HEADER = ("| Experiment | FedAvg | FedBN | HarmoFL | HarmoFL − FedAvg | Cells |", "|---|---:|---:|---:|---|---:|")
NOTE = (
    "Averages over sites and seeds, in percent (where no FedAvg took part: HarmoFL's lowest to highest). The "
    "difference, in points, is that of pairs with the same site and seed; cells: done of planned."
)


def summary_table(experiments: Sequence[tuple[Block, Results]]) -> str:
    """The table in Markdown, with a note below it."""
    rows = [cells for block, results in experiments for cells in _summary_rows(block, results)]
    return "\n".join([*HEADER, *(f"| {' | '.join(cells)} |" for cells in rows), "", NOTE]) + "\n"


def _summary_rows(block: Block, results: Results) -> Iterator[list[str]]:
    """One row per variation in which FedAvg took part and something is done; else one for all."""
    plan, runs = results.experiment.plan, results.lines()
    methods = {method.label: method for method in methods_of(runs)} if runs else {}
    place = f"[{markdown_escape(block.heading)}](#{anchor(block.heading)})"
    cells = f"{len(results.runs)} of {len(results.experiment.cells)}"
    if not methods or not any(row.method == "fedavg" for row in plan.rows):
        yield [place, MISSING, MISSING, _span(list(methods.values())), MISSING, cells]
        return
    for variation in [variation.name for variation in plan.variations] or [""]:
        found = [_method(results, methods, name, variation) for name in ("fedavg", "fedbn", "harmofl")]
        if any(found):
            averages = [_average(method) for method in found]
            where = f"{place}: {markdown_escape(variation)}" if variation else place
            yield [where, *averages, _difference(found[2], found[0]), cells]
            place, cells = "…", ""


def _method(results: Results, methods: dict[str, MethodScores], name: str, variation: str) -> MethodScores | None:
    """The line that stands for a method: an ablation has other rows of it too."""
    title = registry.methods.find(name).name
    rows = [
        row.name
        for row in results.experiment.plan.rows
        if row.method == name and (not row.settings or row.name == title or row.name.endswith(f"({title})"))
    ]
    labels = [f"{row}, {variation}" if variation else row for row in rows]
    return next((methods[label] for label in labels if label in methods), None)


def _average(method: MethodScores | None) -> str:
    return MISSING if method is None or method.average != method.average else f"{method.average:.2f}"


def _span(methods: list[MethodScores]) -> str:
    """The lowest and the highest average, and whose they are."""
    order = sorted((method for method in methods if method.average == method.average), key=lambda each: each.average)
    ends = dict.fromkeys(f"{each.average:.2f} ({each.label.rpartition(', ')[2]})" for each in order[:1] + order[-1:])
    return " to ".join(map(markdown_escape, ends)) or MISSING


def _difference(method: MethodScores | None, baseline: MethodScores | None) -> str:
    found = compare(method, baseline) if method and baseline else None
    if found is None:
        return MISSING
    text = f"{signed_text(found.difference)}, ahead in {found.num_ahead} of {found.num_pairs}: {found.verdict}"
    return f"**{text}**" if found.more_than_noise else text
