"""One HTML page about finished runs, from their folders alone.

The page is a single file: styles, scripts and figures are inside, and it asks for nothing from any network.
"""

from __future__ import annotations

import html
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harmofl.reporting import figures
from harmofl.reporting.tables import MethodScores, RunResult, methods_of, read_run, score_table, sites_of

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure


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
    runs: Sequence[RunResult],
    samples_figure: Figure | None = None,
    next_steps: Sequence[tuple[str, str]] | None = None,
) -> None:
    """Write the page whole or not at all; next_steps pairs what to do with the command that does it."""
    if not runs:
        raise ValueError("no runs given: a page needs at least one")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    page = _render(
        title=title,
        sentences=list(summary_sentences),
        task=runs[0].task,
        headline=_headline(runs),
        table=score_table(runs),
        plots=_plots(runs, samples_figure),
        explains_amplitude=samples_figure is not None or any(run.method == "harmofl" for run in runs),
        band=_shared_band(runs),
        costs=[_cost(method) for method in methods_of(runs)],
        next_steps=next_steps_for(runs[0].task) if next_steps is None else next_steps,
        shared_settings=_shared_settings(runs),
        differing_settings=_differing_settings(runs),
        versions=_versions(runs),
        repeats=[_repeat(run, path.parent) for run in runs],
    )
    _write_atomically(path, page)


def next_steps_for(task: str) -> list[tuple[str, str]]:
    """Say what a reader may want to do after the page, and with which command."""
    task = shlex.quote(task)
    return [
        ("See every method, its settings and their defaults", "harmofl methods"),
        ("Check your own images before training on them", f"harmofl data check --task {task} --data DIR"),
        ("Train on them", f"harmofl train --task {task} --method harmofl --data DIR --out runs/mine"),
        ("Make a page like this one from the records", "harmofl report runs/mine"),
    ]


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _render(**values: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("harmofl.reporting").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(**values)


# ---- in words ----


def title_for(runs: Sequence[RunResult]) -> str:
    """Name the methods and the task."""
    labels = [method.label for method in methods_of(runs)]
    return f"{_listed(labels) if len(labels) <= 3 else f'{len(labels)} methods'} on {runs[0].task}"


def summarize(runs: Sequence[RunResult]) -> list[str]:
    """Say what the records show, whoever is ahead."""
    ranked = _ranked(runs)
    sentences = [_who_is_ahead(ranked, runs)] if ranked else ["No run has an average test score."]
    sentences += _harmofl_behind(ranked)
    sentences += _at_the_sites(ranked, sites_of(runs))
    sentences += _how_sure(ranked)
    sentences += _references(runs)
    sentences += _failures(runs)
    sentences += _phantoms(runs)
    return sentences


def _ranked(runs: Sequence[RunResult]) -> list[MethodScores]:
    """Order the methods in competition by their average; without one, a method has no place."""
    competing = [method for method in methods_of(runs) if not method.is_reference]
    scored = [method for method in competing if method.average == method.average]
    return sorted(scored, key=lambda method: -method.average)


def _who_is_ahead(ranked: Sequence[MethodScores], runs: Sequence[RunResult]) -> str:
    leader = ranked[0]
    quantity = f"average test {runs[0].metric_name} over {_count(len(sites_of(runs)), 'hospital')}"
    if len(ranked) == 1:
        return f"{leader.label} reaches {_percent(leader.average)} {quantity}."
    level = [method.label for method in ranked if _is_level(leader.average, method.average)]
    if len(level) > 1:
        return f"{_listed(level)} are level at {_percent(leader.average)} {quantity}."
    second = ranked[1]
    gap = _points(leader.average - second.average)
    return (
        f"{leader.label} is ahead with {_percent(leader.average)} {quantity}, "
        f"{gap} more than {second.label} ({_percent(second.average)})."
    )


def _harmofl_behind(ranked: Sequence[MethodScores]) -> list[str]:
    own = next((method for method in ranked if method.runs[0].method == "harmofl"), None)
    if own is None or _is_level(ranked[0].average, own.average):
        return []
    gap = _points(ranked[0].average - own.average)
    return [f"{own.label} does not win here: it is {gap} behind {ranked[0].label}."]


def _at_the_sites(ranked: Sequence[MethodScores], sites: Sequence[str]) -> list[str]:
    if not ranked:
        return []
    leader = ranked[0]
    scores = {site: leader.mean_at(site) for site in sites if leader.mean_at(site) == leader.mean_at(site)}
    if len(scores) < 2:
        return []
    best, worst = max(scores, key=scores.__getitem__), min(scores, key=scores.__getitem__)
    sentence = (
        f"{leader.label} does best at {_hospital(best)} ({_percent(scores[best])}) "
        f"and worst at {_hospital(worst)} ({_percent(scores[worst])})"
    )
    return [sentence + (_compared(scores, ranked[1]) if len(ranked) > 1 else "") + "."]


def _compared(scores: Mapping[str, float], second: MethodScores) -> str:
    gaps = {site: score - second.mean_at(site) for site, score in scores.items()}
    gaps = {site: gap for site, gap in gaps.items() if gap == gap}
    if not gaps:
        return ""
    most, least = max(gaps, key=gaps.__getitem__), min(gaps, key=gaps.__getitem__)
    ahead = sum(gap > 0 and not _is_level(gap, 0) for gap in gaps.values())
    where = f"all {len(gaps)}" if ahead == len(gaps) else f"{ahead} of {len(gaps)}"
    text = f"; it is ahead of {second.label} at {where} hospitals"
    if ahead:
        text += f", most at {_hospital(most)} ({_signed(gaps[most])})"
    if gaps[least] < 0 and not _is_level(gaps[least], 0):
        text += f", and furthest behind at {_hospital(least)} ({_signed(gaps[least])})"
    return text


def _how_sure(ranked: Sequence[MethodScores]) -> list[str]:
    if len(ranked) < 2:
        return []
    leader, second = ranked[:2]
    shared = sorted(leader.averages.keys() & second.averages.keys())
    if max(len(leader.runs), len(second.runs)) == 1:
        return ["This compares one run per method: another seed can turn a small difference around."]
    if len(shared) < 2:
        return [f"{leader.label} and {second.label} ran with different seeds, so their gap is less certain."]
    wins = sum(leader.averages[seed] > second.averages[seed] for seed in shared)
    return [f"Seed by seed, {leader.label} is ahead of {second.label} in {wins} of {len(shared)}."]


def _references(runs: Sequence[RunResult]) -> list[str]:
    references = [method for method in methods_of(runs) if method.is_reference]
    scores = [f"{method.label} {_percent(method.average)}" for method in references]
    return [f"For reference: {_listed(scores)}."] if scores else []


def _failures(runs: Sequence[RunResult]) -> list[str]:
    updates = [record for run in runs for record in run.records if record["phase"] == "train"]
    updates = [record for record in updates if record["site"] != "server"]
    failed = [record for record in updates if "error" in record]
    if not failed:
        return []
    sites = [_hospital(str(site)) for site in dict.fromkeys(record["site"] for record in failed)]
    left_out = "was" if len(failed) == 1 else "were"
    return [f"{len(failed)} of {len(updates)} site updates failed and {left_out} left out ({_listed(sites)})."]


def _phantoms(runs: Sequence[RunResult]) -> list[str]:
    sources = [run.settings["data"].get("folder") for run in runs if "data" in run.settings]
    if not sources or any(sources):
        return []
    return ["The images are phantoms, made by this software: they show how methods behave, not how well they diagnose."]


def _is_level(first: float, second: float) -> bool:
    """Whether two percentages read the same."""
    return abs(first - second) < 0.05


def _percent(value: float) -> str:
    return f"{value:.1f} %" if value == value else "no score"


def _points(gap: float) -> str:
    return f"{gap:.1f} {'point' if f'{gap:.1f}' == '1.0' else 'points'}"


def _signed(gap: float) -> str:
    return f"{gap:+.1f}".replace("-", "−") + " points"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _hospital(site: str) -> str:
    return f"hospital {site}" if len(site) <= 2 else site  # "A" alone would not read as a place


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# ---- in numbers ----


@dataclass(frozen=True)
class _Number:
    value: str
    label: str


def _headline(runs: Sequence[RunResult]) -> list[_Number]:
    """Pick the two leading averages and the gap between them, in the order that the runs came in."""
    leading = _ranked(runs)[:2]
    shown = [method for method in methods_of(runs) if method in leading]
    numbers = [_Number(_percent(method.average), method.label) for method in shown]
    if len(leading) == 2 and not _is_level(leading[0].average, leading[1].average):
        gap = leading[0].average - leading[1].average
        numbers.append(_Number(_points(gap), f"{leading[0].label} ahead"))
    return numbers


@dataclass(frozen=True)
class _Cost:
    label: str
    rounds: str
    selected: str
    minutes: float
    megabytes: float | None
    failed: int


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
        megabytes=sum(sent) / len(sent) / 1e6 if sent else None,
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


def _versions(runs: Sequence[RunResult]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for run in runs:
        for name, version in (run.summary.get("versions") or {}).items():
            found.setdefault(name, []).append(str(version))
    return {name: ", ".join(dict.fromkeys(versions)) for name, versions in found.items()}


@dataclass(frozen=True)
class _Repeat:
    label: str
    command: str
    config: str


def _repeat(run: RunResult, start: Path) -> _Repeat:
    folder = run.folder.resolve()
    config = _relative(folder / "config.toml", start)
    out = _relative(folder.with_name(f"{folder.name}-again"), start)
    command = ["harmofl", "train", "--config", config, "--out", out]
    return _Repeat(f"{run.title}, seed {run.seed}", shlex.join(command), run.config)


def _relative(path: Path, start: Path) -> str:
    """Name the path as seen from the page: it moves with it, and shows nobody's home folder."""
    try:
        return Path(os.path.relpath(path, start.resolve())).as_posix()
    except ValueError:  # another drive on Windows
        return path.as_posix()


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def _shared_settings(runs: Sequence[RunResult]) -> dict[str, str]:
    each = [_flatten(run.settings) for run in runs]
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each)}


def _differing_settings(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """Per setting that is not the same everywhere, its value in each run."""
    each = [_flatten(run.settings) for run in runs]
    shared = _shared_settings(runs)
    names = [name for name in _union(each) if name not in shared]
    return {name: [settings.get(name, "–") for settings in each] for name in names}


def _union(mappings: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


# ---- in pictures ----


@dataclass(frozen=True)
class _Plot:
    svg: Markup
    caption: str


def _plots(runs: Sequence[RunResult], samples_figure: Figure | None) -> dict[str, _Plot]:
    metric = runs[0].metric_name
    several = any(len(method.runs) > 1 for method in methods_of(runs))
    band = " Bands show one standard deviation over seeds." if several else ""
    ring = "" if several else " A ring marks the round that was selected, on validation images."
    plots = {
        "sites": _plot(
            "sites",
            figures.per_site_scores(runs),
            f"Test {metric} of the selected model at each hospital. Further right is better.",
        ),
        "convergence": _plot(
            "convergence",
            figures.convergence(runs),
            f"Test {metric} after each round, averaged over hospitals.{ring}{band}",
        ),
        "drift": _plot(
            "drift",
            figures.drift(runs),
            f"Drift in each round, averaged over hospitals. Lower means that their models stay closer.{band}",
        ),
    }
    if samples_figure is not None:
        caption = "The same images of each hospital, as they are and as the network sees them, harmonized."
        plots["samples"] = _plot("samples", samples_figure, caption)
    return plots


def _plot(name: str, figure: Figure, caption: str) -> _Plot:
    return _Plot(_inline_svg(figures.to_svg(figure), name, alt=caption), caption)


def _inline_svg(svg: str, name: str, alt: str) -> Markup:
    """Fit matplotlib's SVG into an HTML page: the page's colours, ids of its own, nothing for the rest."""
    from markupsafe import Markup

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style\b.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    for variable in ("INK", "MUTED", "RULE", "PAPER"):
        colour = getattr(figures, variable)
        svg = svg.replace(colour, f"var(--{variable.lower()}, {colour})")
    view_box = re.search(r'viewBox="[^"]*"', svg)
    if view_box is None:
        raise ValueError(f"the SVG of {name!r} has no viewBox")
    opening = f'<svg {view_box[0]} role="img" aria-label="{html.escape(alt)}">'
    return Markup(re.sub(r"<svg\b[^>]*>", lambda _: opening, svg, count=1))


def _shared_band(runs: Sequence[RunResult]) -> str | None:
    """Return the band whose amplitudes HarmoFL shared, if it ran and all its runs say the same."""
    bands = {str(run.settings.get("method", {}).get("band")) for run in runs if run.method == "harmofl"}
    return bands.pop() if len(bands) == 1 else None
