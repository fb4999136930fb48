"""Any run's folder as it is now: finished, running, stopped or failed. Nothing is written, and no plugin is loaded."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from harmofl import registry
from harmofl.documents import LARGEST_TOML, parse_json, parse_toml, read_json, read_text
from harmofl.errors import UsageError
from harmofl.events import SERVER
from harmofl.files import is_claimed
from harmofl.methods.sharing import nothing
from harmofl.runs.folder import Record, RunFolder
from harmofl.runs.selection import AVERAGE, Selection
from harmofl.tasks.scores import Score, score_in

State = Literal["running", "finished", "stopped", "failed"]

ROUNDS_FOR_PACE = 10
"""The last rounds, from whose seconds the time that is left is estimated."""


@dataclass(frozen=True)
class RunStatus:
    """What a run's folder says at one moment."""

    folder: Path
    state: State
    config: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[Record] = ()
    summary: Mapping[str, Any] | None = None
    live: Mapping[str, Any] = field(default_factory=dict)
    """Of a running run: the round that is under way, who has answered, who was left out and why."""
    problem: str = ""
    """Why it failed."""

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.config.get("task", ""))

    @property
    def method(self) -> str:
        """The method's key."""
        return str(self.config.get("method", {}).get("name", ""))

    @property
    def title(self) -> str:
        """The method's name for people."""
        known = registry.methods.find(self.method).name if self.method in registry.methods else self.method
        return str((self.summary or {}).get("title") or known)

    @property
    def images(self) -> str:
        """Which images, in a word or two."""
        return str(self.config.get("data", {}).get("folder") or "synthetic hospitals")

    @property
    def planned_rounds(self) -> int:
        """As many as there will be at most."""
        return int(self.config.get("training", {}).get("rounds", 0))

    @property
    def done_rounds(self) -> int:
        """As many as are averaged and written."""
        return max((record["round"] for record in self._rounds), default=0)

    @property
    def sites(self) -> list[str]:
        """Those that take part."""
        named = self.facts.get("sites") or self.live.get("sites") or ()
        others = (record["site"] for record in self.records if record["site"] != SERVER)
        return list(dict.fromkeys([*named, *others]))

    @property
    def _rounds(self) -> list[Record]:
        return [record for record in self.records if record["site"] == SERVER]

    @cached_property
    def score(self) -> Score:
        """What the scores are; without a name or unit where only a plugin knows."""
        if self.summary and "score" in self.summary:
            return score_in(self.summary)
        name = (self.summary or {}).get("metric_name") or self.config.get("training", {}).get("score")
        if not name and self.task in registry.tasks:
            name = registry.tasks.find(self.task).main_score
        return registry.scores.find(name) if name and name in registry.scores else Score(name or "score", unit="")

    @property
    def validation(self) -> dict[int, dict[str, float]]:
        """The validation scores of every round, by site."""
        return self.values("val", "metric")

    def values(self, phase: str, name: str) -> dict[int, dict[str, float]]:
        """A number of every round, by site."""
        rounds: dict[int, dict[str, float]] = {}
        for record in self.records:
            value = record.get(name)
            wanted = record["phase"] == phase and record["site"] != SERVER and "error" not in record
            if wanted and isinstance(value, (int, float)) and math.isfinite(value):
                rounds.setdefault(record["round"], {})[record["site"]] = value
        return rounds

    @cached_property
    def selection(self) -> Selection:
        """Which round is selected so far, as the server selects it: a round that few sites scored counts less."""
        method = registry.methods.find(self.method) if self.method in registry.methods else None
        clip_updates = self.config.get("federation", {}).get("clip_updates")
        selection = Selection(
            per_site=method is not None and method.shares is nothing,
            best={},
            higher_is_better=self.score.higher_is_better,
            robust=method.withstands_a_site(clip_updates) if method else clip_updates is not None,
        )
        for number, scores in sorted(self.validation.items()):
            selection = selection.after(number, scores)
        return selection

    @property
    def best(self) -> tuple[int | None, float] | None:
        """The round selected so far and its mean validation score; no round where every site has its own."""
        best = self.selection.best
        if not best:
            return None
        mean = statistics.fmean(each.score for each in best.values())
        return (None if self.selection.per_site else best[AVERAGE].round), mean

    @property
    def average(self) -> float | None:
        """The mean test score of a finished run."""
        return self.summary["test"]["average"] if self.summary else None

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the last rounds; None before the first is done and when none is to come."""
        seconds = [record["seconds"] for record in self._rounds[-ROUNDS_FOR_PACE:]]
        if self.state != "running" or not seconds or self.live.get("scoring"):
            return None
        return (self.planned_rounds - self.done_rounds) * statistics.fmean(seconds)

    @property
    def left_out(self) -> list[Record]:
        """Every record of a site that gave no usable answer."""
        return [record for record in self.records if "error" in record]


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    files = RunFolder(folder)
    return files.config.exists() and (files.summary.exists() or files.checkpoints.folder.is_dir())


def find_run_folders(folder: Path) -> list[Path]:
    """The folder itself if it holds a run, or every run below it."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    return sorted(_walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, _ in os.walk(folder):
        if is_run(Path(place)):
            yield Path(place)
            folders.clear()  # there is no run inside of a run
        folders[:] = [name for name in folders if not name.startswith(".")]


def read_status(folder: Path) -> RunStatus:
    """Look at a run's folder; what is missing or half written is left out, as the run may be writing it."""
    files = RunFolder(folder)
    config = _read_config(files.config)
    summary = _read_summary(files.summary)
    running = is_claimed(files.lock)
    problem = files.failure.read_text(encoding="utf-8").strip() if files.failure.exists() else ""
    state: State = "finished" if summary else "running" if running else "failed" if problem else "stopped"
    return RunStatus(
        folder=folder,
        state=state,
        config=config,
        facts=_read_json(files.data) or {},
        records=_read_records(files.records),
        summary=summary,
        live=(_read_json(files.live) or {}) if state == "running" else {},
        problem=problem if state == "failed" else "",
    )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_text(path, LARGEST_TOML))
    except (OSError, ValueError):
        return {}


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _read_summary(path: Path) -> dict[str, Any] | None:
    summary = _read_json(path)
    test = (summary or {}).get("test")
    return summary if isinstance(test, dict) and "average" in test else None


def _read_records(path: Path) -> list[Record]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    records = []
    for line in lines:
        try:
            record = parse_json(line)
        except ValueError:  # the line that is being written
            continue
        if isinstance(record, dict) and {"round", "site", "phase"} <= record.keys():
            records.append(record)
    return records
