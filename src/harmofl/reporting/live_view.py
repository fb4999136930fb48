"""What the page of a running run shows: its state in words, curves, and what every site does."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harmofl.displays.words import describe_early_stop, duration
from harmofl.reporting.live_curves import Line, line_chart, site_line
from harmofl.reporting.page_numbers import Number
from harmofl.runs.folder import Record
from harmofl.runs.status import RunStatus
from harmofl.settings import flatten
from harmofl.settings.schema import AT_THE_SITES

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_ANSWERS = 40
"""Rounds whose answers are shown in a site's row."""
MOST_PROBLEMS = 30
MOST_ROWS = 60
"""Sites in the table."""
MOST_LINES = 24
"""Sites with a curve of their own; of more, the lowest and the highest are drawn."""


@dataclass(frozen=True)
class Answer:
    """What a site did in a round: it answered, was left out with a reason, or is still at work."""

    round: int
    kind: str
    words: str


@dataclass(frozen=True)
class SiteRow:
    """A site's line of the table."""

    name: str
    now: str
    answers: Sequence[Answer]
    left_out: int
    loss: str
    validation: str
    seconds: str


@dataclass(frozen=True)
class Chart:
    """Curves with their title, and their names for the legend."""

    title: str
    svg: Markup
    lines: Sequence[Line]


def view(status: RunStatus) -> dict[str, Any]:
    """All values that the page's template needs of one run."""
    return {
        "title": f"{status.title} on {status.task}",
        "short": f"{status.state}, round {status.done_rounds} of {status.planned_rounds}",
        "state": status.state,
        "sentence": sentence(status),
        "command": resume_command(status),
        "pictures_command": pictures_command(status),
        "part_done": 100 * status.done_rounds / max(1, status.planned_rounds),
        "numbers": numbers(status),
        "charts": [chart for chart in (score_chart(status), loss_chart(status)) if chart.svg],
        "sites": (rows := site_rows(status))[:MOST_ROWS],
        "more_sites": max(0, len(rows) - MOST_ROWS),
        "score_heading": status.score.words_with_unit,
        "problems": list(reversed(status.left_out))[:MOST_PROBLEMS],
        "more_problems": max(0, len(status.left_out) - MOST_PROBLEMS),
    }


def settings_of(status: RunStatus) -> dict[str, str]:
    """Every setting as text."""
    return {name: str(value) for name, value in flatten(status.config).items()}


# ---- in words ----


def sentence(status: RunStatus) -> str:
    """Where the run stands."""
    done = f"round {status.done_rounds} of {status.planned_rounds}"
    match status.state:
        case "finished":
            return _finished(status)
        case "failed":
            return f"Failed after {done}: {status.problem}"
        case "stopped":
            return f"Stopped after {done}. This continues it:"
    return _running(status)


def _finished(status: RunStatus) -> str:
    summary = status.summary or {}
    reached = f"{status.score.format(summary['test']['average'])} mean test {status.score.words}"
    best, early = summary.get("best_round"), summary.get("stopped_early")
    chosen = f"the model of round {best}" if best else "each site's own best round"
    ending = f" Training {describe_early_stop(**early)}." if early else ""
    sites = len(summary["test"].keys() - {"average", "std"})
    return f"Finished: {reached} over {sites} sites, with {chosen}.{ending}"


def _running(status: RunStatus) -> str:
    live = status.live
    if live.get("scoring"):
        return "All rounds are done: the selected model is being scored and written."
    if not live:
        return "The run is starting: images are opened and the first model is made."
    answered, total = len(live["answered"]), len(live.get("asked", status.sites))
    left_out = f", {len(live['left_out'])} left out" if live["left_out"] else ""
    return f"Round {live['round']} of {status.planned_rounds}: {answered} of {total} sites have answered{left_out}."


def resume_command(status: RunStatus) -> str:
    """What continues a run that was stopped or failed."""
    if status.state not in ("stopped", "failed"):
        return ""
    command = ["deploy", "run"] if status.config.get("data", {}).get("folder") == AT_THE_SITES else ["train"]
    return shlex.join(["harmofl", *command, "--out", str(status.folder), "--resume"])


def pictures_command(status: RunStatus) -> str:
    """What draws a finished run's predictions, where its images are on this machine."""
    if status.state != "finished" or status.config.get("data", {}).get("folder") == AT_THE_SITES:
        return ""
    return shlex.join(["harmofl", "pictures", str(status.folder), "--out", str(status.folder / "pictures")])


def numbers(status: RunStatus) -> list[Number]:
    """What stands in large letters."""
    best = status.best
    left = status.seconds_left
    shown = [Number(f"{status.done_rounds} / {status.planned_rounds}", "rounds done")]
    if best:
        where = "each site's own round" if best[0] is None else f"round {best[0]}"
        shown.append(Number(status.score.format(best[1], digits=1), f"best validation so far, {where}"))
    if left is not None:
        shown.append(Number(f"{duration(left)}", "left, about"))
    return shown


# ---- in curves ----


def score_chart(status: RunStatus) -> Chart:
    """Validation scores by round: every site, and the mean of those that answered."""
    unit = status.score.in_unit
    rounds = {
        number: {site: unit(value) for site, value in scores.items()} for number, scores in status.validation.items()
    }
    return _chart(status, f"Validation: {status.score.words_with_unit}", rounds)


def loss_chart(status: RunStatus) -> Chart:
    """Training losses by round."""
    return _chart(status, "Training loss", status.values("train", "loss"))


def _chart(status: RunStatus, title: str, rounds: Mapping[int, Mapping[str, float]]) -> Chart:
    lines = [
        site_line(site, {number: values[site] for number, values in rounds.items() if site in values}, index)
        for index, site in enumerate(status.sites)
    ]
    means = {number: statistics.fmean(values.values()) for number, values in rounds.items()}
    lines = [line for line in lines if line.values]
    if len(lines) > MOST_LINES:
        ends = {"lowest site": min, "highest site": max}
        lines = [
            site_line(name, {number: end(values.values()) for number, values in rounds.items()}, index)
            for index, (name, end) in enumerate(ends.items())
        ]
    if len(lines) > 1:
        lines.append(Line("mean over sites", means, "var(--ink)", bold=True))
    last = f"; the mean of round {max(means)} is {means[max(means)]:.3g}" if means else ""
    return Chart(title, line_chart(lines, f"{title}, by round and site{last}"), lines)


# ---- site by site ----


def site_rows(status: RunStatus) -> list[SiteRow]:
    """What every site has done, and does now; of many, those that were left out most often come first."""
    by_site: dict[str, list[Record]] = {site: [] for site in status.sites}
    for record in status.records:
        if record["site"] in by_site:
            by_site[record["site"]].append(record)
    rows = [_row(status, site, own) for site, own in by_site.items()]
    return sorted(rows, key=lambda row: -row.left_out) if len(rows) > MOST_ROWS else rows


def _row(status: RunStatus, site: str, own: Sequence[Record]) -> SiteRow:
    trained = [record for record in own if record["phase"] == "train"]
    usable = [record for record in trained if "error" not in record]
    scored = [record["metric"] for record in own if record["phase"] == "val" and "metric" in record]
    last = usable[-1] if usable else {}
    return SiteRow(
        name=site,
        now=_now(status, site, trained),
        answers=[_answer(record) for record in trained[-MOST_ANSWERS:]],
        left_out=sum("error" in record for record in own),
        loss=f"{last['loss']:.3f}" if "loss" in last else "–",
        validation=f"{status.score.in_unit(scored[-1]):.1f}" if scored else "–",
        seconds=f"{last['seconds']:.1f}" if "seconds" in last else "–",
    )


def _answer(record: Mapping[str, Any]) -> Answer:
    if "error" in record:
        return Answer(record["round"], "left-out", f"round {record['round']}: {record['error']}")
    return Answer(record["round"], "answered", f"round {record['round']}: answered")


def _now(status: RunStatus, site: str, trained: Sequence[Mapping[str, Any]]) -> str:
    live = status.live
    if live and not live.get("scoring"):
        if site in live["left_out"]:
            return f"left out: {live['left_out'][site]}"
        if site not in live.get("asked", [site]):
            return "is not asked in this round"
        return "has answered" if site in live["answered"] else "is at work"
    if not trained:
        return "has not answered yet"
    answer = _answer(trained[-1])
    return f"answered in round {answer.round}" if answer.kind == "answered" else f"left out in {answer.words}"
