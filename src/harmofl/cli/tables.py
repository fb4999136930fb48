"""What people see in a terminal: progress while training, tables afterwards."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from harmofl.data.check import Check
    from harmofl.deployment.engine import Finding
    from harmofl.experiments.results import Results
    from harmofl.inference.adaptation import AdaptationSummary
    from harmofl.inference.outcomes import Outcome
    from harmofl.runs.finished import FinishedRun
    from harmofl.tasks.scores import Score


WIDE = 200
"""Characters in a line of a file or a pipe, where tables need not break."""


NARROW = 80
"""Characters in a line of a terminal, below which names may break too."""


def console() -> Console:
    """For what is printed once: as wide as the terminal, if it is one."""
    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=WIDE)


def make_table(*headings: str, whole: Collection[str] = (), **options: Any) -> Table:
    """A table whose cells fold and are never cut; `whole`: columns of names that stay unbroken where there is room."""
    table = Table(**options)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading in whole and console().width >= NARROW)
    return table


def show_summary(summary: Mapping[str, Any], out: Path) -> None:
    """The scores of one run, and where everything is."""
    from harmofl.displays.words import describe_early_stop
    from harmofl.runs.privacy_words import describe_privacy
    from harmofl.tasks.scores import score_in

    score, test = score_in(summary), summary["test"]
    table = make_table("site", score.words_with_unit)
    for name, value in test.items():
        if name not in ("average", "std"):
            table.add_row(Text(name), f"{score.in_unit(value):.2f}")
    table.add_section()
    table.add_row("average", f"{score.in_unit(test['average']):.2f}")
    shown = console()
    shown.print(f"{summary['title']} on {summary['task']}: {score.words} on test images", highlight=False)
    shown.print(table)
    chosen = f"round {summary['best_round']}" if summary["best_round"] else "each site's own best round"
    shown.print(
        f"The model of {chosen}, selected on validation images, lies in {out / 'model'} ({summary['seconds']:.0f} s).",
        highlight=False,
        soft_wrap=True,
    )
    if early := summary.get("stopped_early"):
        shown.print(f"Training {describe_early_stop(**early)}.", highlight=False, soft_wrap=True)
    for line in describe_privacy(summary):
        shown.print(f"Differential privacy, {line}.", highlight=False, soft_wrap=True)
    for site, scores in summary.get("unseen", {}).items():
        note = f" ({scores['note']})" if "note" in scores else ""
        reached = f"{score.format(scores['metric'])} on all {scores['images']:.0f} images"
        shown.print(f"At {site}, which took no part: {reached}{note}.", highlight=False, soft_wrap=True, markup=False)
    if summary["missing"]:
        shown.print(f"Not in the average, as they could not be scored: {', '.join(summary['missing'])}")


def show_table(runs: Sequence[FinishedRun]) -> None:
    """Several runs side by side."""
    from harmofl.reporting.table_formats import to_rich
    from harmofl.reporting.tables import score_table

    shown = console()
    shown.print(to_rich(score_table(runs), shown.width))


def show_results(results: Results, out: Path) -> None:
    """The table, whether differences are more than noise, what is missing, and where everything is."""
    from harmofl.experiments.writing import results_table, sentences
    from harmofl.reporting.gallery import FOLDER
    from harmofl.reporting.table_formats import to_rich

    shown = console()
    if results.runs:
        shown.print(to_rich(results_table(results), shown.width))
        for sentence in sentences(results):
            shown.print(Text(sentence))
    for cell in results.missing:
        message = results.errors.get(cell.path, "not run yet")
        print(f"harmofl: {cell}: {message}", file=sys.stderr)
    if results.experiment.plan.shows == "samples":
        shown.print(f"The samples and how they were chosen lie in {out / FOLDER}.", highlight=False, soft_wrap=True)
        return
    done = f"{len(results.runs)} of {len(results.experiment.cells)} cells are done"
    shown.print(f"{done}; the table and every score lie in {out}.", highlight=False, soft_wrap=True)


def show_scores(scores: Mapping[str, Mapping[str, float]], metric_name: str) -> None:
    """Every score in its unit, one row per site and one for their average."""
    names = list(dict.fromkeys(name for values in scores.values() for name in values if name != "images"))
    shown = {name: _score_called(metric_name if name == "metric" else name) for name in names}
    headings = (f"{score.name} ({score.unit})" if score.unit else score.name for score in shown.values())
    table = make_table("site", "images", *headings)
    for site, values in scores.items():
        table.add_row(
            Text(site), f"{values['images']:.0f}", *(_number(shown[name], values.get(name)) for name in names)
        )
    table.add_section()
    columns = {name: [values[name] for values in scores.values() if name in values] for name in names}
    table.add_row("average", "", *(_number(shown[name], statistics.fmean(column)) for name, column in columns.items()))
    console().print(table)


def _score_called(name: str) -> Score:
    """A score by its name: `dice_tumor` is printed as `dice` is, and what is no score has no unit."""
    from harmofl import registry
    from harmofl.tasks.scores import Score

    for known in (name, name.partition("_")[0]):
        if known in registry.scores:
            return Score(name, unit=registry.scores.find(known).unit)
    return Score(name, unit="")


def _number(score: Score, value: float | None) -> str:
    from harmofl.tasks.scorers import MISSING

    if value is None:
        return "–"
    if score.name == MISSING:  # a count
        return f"{value:.4g}"
    return f"{score.in_unit(value):.2f}" if score.unit else f"{value:.4f}"


def show_outcomes(outcomes: Sequence[Outcome], out: Path) -> None:
    """How many images were done and where the results are; what failed or was left out, on stderr, with the reason."""
    images = [outcome for outcome in outcomes if not outcome.left_out]
    done = [outcome for outcome in images if not outcome.error]
    for outcome in images:
        for note in outcome.notes:
            print(f"harmofl: {outcome.image}: {note}", file=sys.stderr)
        if outcome.error:
            print(f"harmofl: {outcome.image}: {outcome.error}", file=sys.stderr)
    for (folder, reason), names in _left_out(outcomes).items():
        print(f"harmofl: {folder}: left out {', '.join(names)}: {reason}", file=sys.stderr)
    of_all = f" of {len(images)}" if len(done) < len(images) else ""
    rest = f", {len(outcomes) - len(images)} left out" if len(images) < len(outcomes) else ""
    print(f"{len(done)}{of_all} image{'' if len(images) == 1 else 's'} predicted{rest}: {out}")


def _left_out(outcomes: Sequence[Outcome]) -> dict[tuple[Path, str], list[str]]:
    """The names of files that were left out, by their folder and the reason."""
    names: dict[tuple[Path, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.left_out:
            path = Path(outcome.image)
            names.setdefault((path.parent, outcome.left_out), []).append(path.name)
    return names


def show_adaptation(summary: AdaptationSummary, out: Path) -> None:
    """What an adaptation took and changed; images that could not be used, on stderr."""
    for image, reason in summary.unreadable.items():
        print(f"harmofl: {image}: {reason}", file=sys.stderr)
    moved = []
    if summary.shift_of_means is not None:
        moved.append(
            f"batch norm means moved by up to {summary.shift_of_means:.2f} standard deviations, deviations changed by "
            f"a factor of up to {summary.ratio_of_deviations:.2f} (layer by layer, medians over channels)"
        )
    if summary.change_of_harmonizer is not None:
        moved.append(f"what the harmonizer holds of its own site changed by {summary.change_of_harmonizer:.0%}")
    print(
        f"Statistics of {summary.images} images ({summary.inputs} network inputs): {'; '.join(moved)}.\n"
        f"The model for this hospital: {out}"
    )


def show_check(check: Check, picture: Path | None, as_json: bool, manifest: Path | None = None) -> None:
    """The table of a folder's sites, its problems, and which files were written; or all of it as JSON."""
    from harmofl.data.check import to_json
    from harmofl.reporting.check_table import to_rich

    if as_json:
        print(json.dumps(to_json(check), indent=2))
        return
    shown = console()
    for part in to_rich(check, shown.width, wrote_manifest=manifest is not None):
        shown.print(part)
    if picture:
        shown.print(f"A row of images per site: {picture}", highlight=False, soft_wrap=True)
    if manifest:
        use = f"to train on those alone, save it as {Path(check.folder) / 'manifest.csv'}"
        shown.print(f"The images that can be used: {manifest} ({use})", highlight=False, soft_wrap=True, markup=False)


def show_findings(findings: Iterable[Finding], as_json: bool) -> bool:
    """One line per finding as it comes, with what to do; return whether all is well."""
    if as_json:
        found = list(findings)
        print(json.dumps([asdict(finding) for finding in found], indent=2, ensure_ascii=False))
        return all(finding.ok for finding in found)
    well = True
    for finding in findings:
        sign = ("!" if finding.hint else "✓") if finding.ok else "✗"
        hint = f"\n    {finding.hint}" if finding.hint else ""
        print(f"{sign} {finding.what}{hint}", flush=True)
        well = well and finding.ok
    return well
