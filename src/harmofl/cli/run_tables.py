"""Tables of runs in a folder, and of two side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.text import Text

from harmofl.cli.tables import console, make_table
from harmofl.runs.compared import Comparison, ListedRun

STYLES = {"finished": "green", "running": "cyan", "stopped": "yellow", "failed": "red"}


def show_runs(runs: Sequence[ListedRun], as_json: bool) -> None:
    """A line per run, or a list of objects."""
    if as_json:
        print(json.dumps([run.to_json() for run in runs], indent=2, ensure_ascii=False))
        return
    table = make_table("run", "method", "task", "images", "rounds", "score", "state", whole=["run", "rounds", "score"])
    for run in runs:
        status = run.status
        state = Text(status.state, STYLES[status.state])
        if status.problem:
            state.append(f": {status.problem}", "default")
        table.add_row(Text(run.name), status.method, status.task, Text(status.images), run.rounds, run.score, state)
    console().print(table)


def show_comparison(comparison: Comparison, as_json: bool) -> None:
    """The settings that differ, and the scores per site with their difference."""
    if as_json:
        print(json.dumps(comparison.to_json(), indent=2, ensure_ascii=False))
        return
    shown, names = console(), [run.name for run in comparison.runs]
    settings = make_table("setting", *names, whole=["setting"], title="Settings that differ")
    for name, pair in comparison.settings.items():
        settings.add_row(name, *(Text("–" if value is None else str(value)) for value in pair))
    shown.print(settings if comparison.settings else "The settings are the same.")
    if not comparison.comparable:
        one, other = (run.status.score.words for run in comparison.runs)
        shown.print(f"Their scores cannot be compared: {one} and {other}.")
        return
    shown.print(_scores(comparison, names))


def _scores(comparison: Comparison, names: Sequence[str]) -> object:
    score = comparison.runs[0].status.score
    images = "test images" if comparison.phase == "test" else "validation images, at the best round so far"
    title = f"{score.words_with_unit} on {images}"
    table = make_table("site", *names, "difference", title=title[0].upper() + title[1:])
    for site, pair in comparison.scores.items():
        values = ["–" if value is None else f"{score.in_unit(value):.2f}" for value in pair]
        one, other = pair
        gap = "" if one is None or other is None else f"{score.in_unit(other) - score.in_unit(one):+.2f}"
        if site == "average":
            table.add_section()
        table.add_row(Text(site), *values, gap)
    return table
