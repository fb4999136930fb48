"""One HTML page about finished runs, from their folders alone.

The page is a single file: styles, scripts and figures are inside, and it asks for nothing from any network.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harmofl.errors import UsageError
from harmofl.files import write_whole
from harmofl.reporting import comparisons, figures
from harmofl.reporting.comparisons import Comparison
from harmofl.reporting.gallery import Photo
from harmofl.reporting.inline_svg import inline_svg
from harmofl.reporting.page_numbers import (
    costs_of,
    differing_settings,
    headline,
    shared_band,
    shared_settings,
    show_comparison,
    unseen_scores,
    versions_of,
)
from harmofl.reporting.style import to_svg
from harmofl.reporting.tables import Table, methods_of, score_table
from harmofl.reporting.templates import render
from harmofl.reporting.words import summarize, title_for
from harmofl.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure and what it shows, in words."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Repeat:
    """How to repeat a run."""

    label: str
    command: str
    config: str = ""


@dataclass(frozen=True)
class Additions:
    """What a page shows in addition to, or in place of, what the runs tell."""

    table: Table | None = None
    """In place of the runs' own."""
    comparisons: Sequence[Comparison] = ()
    paper: Table | None = None
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    """In place of the runs' own."""
    gallery: Sequence[Photo] = ()
    """Pictures that were drawn before."""
    missing: Sequence[tuple[str, str]] = ()
    """What has no scores, and why."""
    repeats: Sequence[Repeat] = ()
    """In place of the runs' own."""
    repeat_all: str = ""
    """The command that repeats everything at once."""


NOTHING_MORE = Additions()

TO_TRY = ("fedbn", "harmofl", "fedavg")
"""Of these, a page proposes the first that it does not show."""


def page_for_runs(
    runs: Sequence[FinishedRun],
    out: Path | str,
    samples_figure: Figure | None = None,
    more_pictures: Mapping[str, Picture] | None = None,
    next_steps: Sequence[tuple[str, str]] | None = None,
) -> None:
    """Write the page about these runs, with a title and a summary computed from their records."""
    write_page(
        out,
        title=title_for(runs),
        summary_sentences=summarize(runs),
        runs=runs,
        samples_figure=samples_figure,
        next_steps=next_steps,
        additions=Additions(pictures={**pictures_of(runs), **more_pictures}) if more_pictures else NOTHING_MORE,
    )


def write_page(
    path: Path | str,
    *,
    title: str,
    summary_sentences: Sequence[str],
    runs: Sequence[FinishedRun],
    samples_figure: Figure | None = None,
    next_steps: Sequence[tuple[str, str]] | None = None,
    additions: Additions = NOTHING_MORE,
) -> None:
    """Write the page whole or not at all; next_steps pairs what to do with the command that does it."""
    if not runs:
        raise UsageError("no runs given: a page needs at least one")
    path = Path(path)
    pictures = dict(additions.pictures or pictures_of(runs))
    if samples_figure is not None:
        pictures["samples"] = Picture(samples_figure, SAMPLES_CAPTION)
    page = render(
        "page.html.j2",
        title=title,
        sentences=[_unbroken(sentence) for sentence in summary_sentences],
        task=runs[0].task,
        headline=headline(runs),
        table=additions.table or score_table(runs),
        paper=additions.paper,
        comparisons=[show_comparison(comparison) for comparison in additions.comparisons],
        comparisons_note=comparisons.NOTE,
        missing=additions.missing,
        unseen=unseen_scores(runs),
        plots={name: _plot(name, picture) for name, picture in pictures.items()},
        gallery=additions.gallery,
        explains_amplitude=samples_figure is not None or any(run.method == "harmofl" for run in runs),
        band=shared_band(runs),
        costs=costs_of(runs),
        next_steps=next_steps_for(runs, path.parent) if next_steps is None else next_steps,
        shared_settings=shared_settings(runs),
        differing_settings=differing_settings(runs),
        labels=[method.label for method in methods_of(runs)],
        versions=versions_of(runs),
        repeat_all=additions.repeat_all,
        repeats=additions.repeats or [_repeat(run, path.parent) for run in runs],
    )
    write_whole(path, page)


def next_steps_for(runs: Sequence[FinishedRun], start: Path) -> list[tuple[str, str]]:
    """Say what a reader may want to do after the page, and with which command, as seen from the page's folder."""
    folder = runs[-1].folder.resolve()
    config = seen_from(start, folder / "config.toml")
    others = [method for method in TO_TRY if method not in {run.method for run in runs}]

    def train(*changes: str, into: str) -> str:
        out = seen_from(start, _free(folder.with_name(into)))
        return shlex.join(["harmofl", "train", "--config", config, *changes, "--out", out])

    model = shlex.quote(seen_from(start, _free(folder.with_name("shifted")) / "model"))
    listed = ("See every method, its settings and their defaults", "harmofl methods")
    if not runs[-1].config:
        return [listed]
    return [
        listed,
        *(("Train another method on the same hospitals", train("--method", other, into=other)) for other in others[:1]),
        ("Let the hospitals look very different", train("--set", "data.shift=2", into="shifted")),
        ("Score that model on hospitals that look alike", f"harmofl evaluate {model} --set data.shift=0"),
    ]


def _free(folder: Path) -> Path:
    """The folder, or the first of that name with a number that is not there yet."""
    names = (folder.name, *(f"{folder.name}-{number}" for number in range(2, 1000)))
    return next(place for place in map(folder.with_name, names) if not place.exists())


def _unbroken(sentence: str) -> str:
    """Keep a number and its unit, or p and its value, on one line."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\bp) (?=[=<])|(?<=\bp [=<]) ", "\N{NO-BREAK SPACE}", sentence)


def _repeat(run: FinishedRun, start: Path) -> Repeat:
    return Repeat(f"{run.title}, seed {run.seed}", shlex.join(repeat_command(run.folder, start)), run.config)


def repeat_command(folder: Path, start: Path) -> list[str]:
    """The command that does a run again beside itself, as seen from the page's folder."""
    folder = folder.resolve()
    config = seen_from(start, folder / "config.toml")
    out = seen_from(start, folder.with_name(f"{folder.name}-again"))
    return ["harmofl", "train", "--config", config, "--out", out]


def seen_from(start: Path, path: Path) -> str:
    """Name a path as seen from the page's folder: it moves with it, and shows nobody's home folder."""
    try:
        return Path(os.path.relpath(path.resolve(), start.resolve())).as_posix()
    except ValueError:  # another drive on Windows
        return path.as_posix()


# ---- in pictures ----


SAMPLES_CAPTION = "The same images of each hospital, as they are and as the network sees them, harmonized."


def pictures_of(runs: Sequence[FinishedRun]) -> dict[str, Picture]:
    """The figures that every page has, as far as the records tell."""
    score = runs[0].score
    methods = methods_of(runs)
    several = any(len(method.runs) > 1 for method in methods)
    band = " Bands show one standard deviation over seeds." if several else ""
    rings = figures.rings_selected_rounds(methods)
    ring = " A ring marks the round that was selected, on validation images." if rings else ""
    scored = f"{runs[0].scored_on.capitalize()} {score.words}"
    at_sites = f"{scored} of the selected model at each hospital. Further {score.better_direction} is better."
    by_round = f"{scored} after each round, averaged over hospitals.{ring}{band}"
    drift = f"Drift in each round, averaged over hospitals. Lower means that their models stay closer.{band}"
    pictures = {"sites": Picture(figures.per_site_scores(runs), at_sites)}
    if any(run.records for run in runs):
        pictures["convergence"] = Picture(figures.convergence(runs), by_round)
        pictures["drift"] = Picture(figures.drift(runs), drift)
    return pictures


def _plot(name: str, picture: Picture) -> dict[str, Any]:
    svg = inline_svg(to_svg(picture.figure), name, alt=picture.caption)
    return {"svg": svg, "caption": picture.caption}
