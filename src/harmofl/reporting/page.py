"""One HTML page about finished runs, from their folders alone.

The page is a single file: styles, scripts and figures are inside, and it asks for nothing from any network.
"""

from __future__ import annotations

import html
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harmofl.errors import UsageError
from harmofl.files import write_whole
from harmofl.reporting import comparisons, figures
from harmofl.reporting.comparisons import Comparison
from harmofl.reporting.gallery import Photo
from harmofl.reporting.style import INK, MUTED, PAPER, RULE, to_svg
from harmofl.reporting.tables import MethodScores, Table, methods_of, score_table
from harmofl.reporting.words import is_level, ranked, summarize, title_for
from harmofl.runs.finished import FinishedRun, read_run
from harmofl.settings import flatten

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure and what it shows, in words."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Repeat:
    """How a run is done again."""

    label: str
    command: str
    config: str = ""


@dataclass(frozen=True)
class Additions:
    """What a page may hold beside what the runs themselves tell."""

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


def page_for_runs(folders: Sequence[Path | str], out: Path | str, samples_figure: Figure | None = None) -> None:
    """Write the page about these run folders, with a title and a summary computed from their records."""
    runs = [read_run(folder) for folder in folders]
    write_page(
        out,
        title=title_for(runs),
        summary_sentences=summarize(runs),
        runs=runs,
        samples_figure=samples_figure,
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
    page = _render(
        title=title,
        sentences=[_unbroken(sentence) for sentence in summary_sentences],
        task=runs[0].task,
        headline=_headline(runs),
        table=additions.table or score_table(runs),
        paper=additions.paper,
        comparisons=[_compared(comparison) for comparison in additions.comparisons],
        comparisons_note=comparisons.NOTE,
        missing=additions.missing,
        unseen=_unseen(runs),
        plots={name: _plot(name, picture) for name, picture in pictures.items()},
        gallery=additions.gallery,
        explains_amplitude=samples_figure is not None or any(run.method == "harmofl" for run in runs),
        band=_shared_band(runs),
        costs=_costs(runs),
        next_steps=next_steps_for(runs, path.parent) if next_steps is None else next_steps,
        shared_settings=_shared_settings(runs),
        differing_settings=_differing_settings(runs),
        labels=[method.label for method in methods_of(runs)],
        versions=_versions(runs),
        repeat_all=additions.repeat_all,
        repeats=additions.repeats or [_repeat(run, path.parent) for run in runs],
    )
    write_whole(path, page)


def next_steps_for(runs: Sequence[FinishedRun], start: Path) -> list[tuple[str, str]]:
    """Say what a reader may want to do after the page, and with which command, as seen from the page's folder."""
    folder = runs[-1].folder.resolve()
    config = _relative(folder / "config.toml", start)
    others = [method for method in TO_TRY if method not in {run.method for run in runs}]

    def train(*changes: str, into: str) -> str:
        out = _relative(_free(folder.with_name(into)), start)
        return shlex.join(["harmofl", "train", "--config", config, *changes, "--out", out])

    model = shlex.quote(_relative(_free(folder.with_name("shifted")) / "model", start))
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


def _render(**values: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("harmofl.reporting").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(**values)


def _unbroken(sentence: str) -> str:
    """Keep a number and its unit, or p and its value, on one line."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\bp) (?=[=<])|(?<=\bp [=<]) ", "\N{NO-BREAK SPACE}", sentence)


# ---- in numbers ----


@dataclass(frozen=True)
class _Number:
    value: str
    label: str


def _headline(runs: Sequence[FinishedRun]) -> list[_Number]:
    """Pick the two leading averages and the gap between them, in the order that the runs came in."""
    leading = ranked(runs)[:2]
    shown = [method for method in methods_of(runs) if method in leading]
    numbers = [_Number(method.score.text(method.average), method.label) for method in shown]
    if len(leading) == 2 and not is_level(leading[0].average, leading[1].average):
        gap = abs(leading[0].average - leading[1].average)
        numbers.append(_Number(leading[0].score.gap_text(gap), f"{leading[0].label} ahead"))
    return numbers


def _compared(found: Comparison) -> dict[str, Any]:
    """A comparison as the page shows it."""
    return {
        "found": found,
        "points": comparisons.signed(found.difference),
        "tests": [(p, comparisons.p_text(p)) for p in (found.sign_flip_p, found.wilcoxon_p)],
    }


@dataclass(frozen=True)
class _Unseen:
    label: str
    seed: int
    site: str
    score: float
    note: str


def _unseen(runs: Sequence[FinishedRun]) -> list[_Unseen]:
    """The scores at hospitals that took no part, unless the table of scores is of them already."""
    return [
        _Unseen(method.label, run.seed, site, run.score.in_unit(scores["metric"]), scores.get("note", ""))
        for method in methods_of(runs)
        for run in method.runs
        for site, scores in (run.summary.get("unseen") or {}).items()
        if site not in run.scores
    ]


@dataclass(frozen=True)
class _Cost:
    label: str
    rounds: str
    selected: str
    minutes: float
    megabytes: float | None
    failed: int


def _costs(runs: Sequence[FinishedRun]) -> list[_Cost]:
    """What each method cost; nothing where a line of the table is made of several runs, and so has no records."""
    return [_cost(method) for method in methods_of(runs)] if any(run.records for run in runs) else []


def _cost(method: MethodScores) -> _Cost:
    records = [record for run in method.runs for record in run.records]
    updates = [record for record in records if record["phase"] == "train" and record["site"] != "server"]
    sent = [record["bytes_up"] + record["bytes_down"] for record in updates if "bytes_up" in record]
    rounds = [max((record["round"] for record in run.records), default=0) for run in method.runs]
    seconds = [run.summary.get("seconds") or 0.0 for run in method.runs]
    return _Cost(
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


def _versions(runs: Sequence[FinishedRun]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for run in runs:
        for name, version in (run.summary.get("versions") or {}).items():
            found.setdefault(name, []).append(str(version))
    return {name: ", ".join(dict.fromkeys(versions)) for name, versions in found.items()}


def _repeat(run: FinishedRun, start: Path) -> Repeat:
    return Repeat(f"{run.title}, seed {run.seed}", shlex.join(repeating(run.folder, start)), run.config)


def repeating(folder: Path, start: Path) -> list[str]:
    """The command that does a run again beside itself, as seen from the page's folder."""
    folder = folder.resolve()
    config = _relative(folder / "config.toml", start)
    out = _relative(folder.with_name(f"{folder.name}-again"), start)
    return ["harmofl", "train", "--config", config, "--out", out]


def _relative(path: Path, start: Path) -> str:
    """Name the path as seen from the page: it moves with it, and shows nobody's home folder."""
    try:
        return Path(os.path.relpath(path, start.resolve())).as_posix()
    except ValueError:  # another drive on Windows
        return path.as_posix()


def _settings_of(run: FinishedRun) -> dict[str, str]:
    return {name: str(value) for name, value in flatten(run.settings).items()}


def _shared_settings(runs: Sequence[FinishedRun]) -> dict[str, str]:
    each = [_settings_of(run) for run in runs]
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each)}


def _differing_settings(runs: Sequence[FinishedRun]) -> dict[str, list[str]]:
    """Per setting that is not the same everywhere, its values for each method."""
    each = [[_settings_of(run) for run in method.runs] for method in methods_of(runs)]
    shared = _shared_settings(runs)
    names = [name for name in _union(settings for group in each for settings in group) if name not in shared]
    return {
        name: [", ".join(dict.fromkeys(settings.get(name, "–") for settings in group)) for group in each]
        for name in names
    }


def _union(mappings: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


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
    at_sites = f"Test {score.words} of the selected model at each hospital. Further {score.better_direction} is better."
    by_round = f"Test {score.words} after each round, averaged over hospitals.{ring}{band}"
    drift = f"Drift in each round, averaged over hospitals. Lower means that their models stay closer.{band}"
    pictures = {"sites": Picture(figures.per_site_scores(runs), at_sites)}
    if any(run.records for run in runs):
        pictures["convergence"] = Picture(figures.convergence(runs), by_round)
        pictures["drift"] = Picture(figures.drift(runs), drift)
    return pictures


@dataclass(frozen=True)
class _Plot:
    svg: Markup
    caption: str


def _plot(name: str, picture: Picture) -> _Plot:
    return _Plot(_inline_svg(to_svg(picture.figure), name, alt=picture.caption), picture.caption)


def _inline_svg(svg: str, name: str, alt: str) -> Markup:
    """Fit matplotlib's SVG into an HTML page: the page's colours, ids of its own, nothing for the rest."""
    from markupsafe import Markup

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style\b.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    for variable, colour in {"ink": INK, "muted": MUTED, "rule": RULE, "paper": PAPER}.items():
        svg = svg.replace(colour, f"var(--{variable}, {colour})")
    view_box = re.search(r'viewBox="[^"]*"', svg)
    if view_box is None:
        raise UsageError(f"the SVG of {name!r} has no viewBox")
    opening = f'<svg {view_box[0]} role="img" aria-label="{html.escape(alt)}">'
    return Markup(re.sub(r"<svg\b[^>]*>", lambda _: opening, svg, count=1))


def _shared_band(runs: Sequence[FinishedRun]) -> str | None:
    """Return the band whose amplitudes HarmoFL shared, if it ran and all its runs say the same."""
    bands = {str(run.settings.get("method", {}).get("band")) for run in runs if run.method == "harmofl"}
    return bands.pop() if len(bands) == 1 else None
