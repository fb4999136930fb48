"""The folders of finished runs, read with care: an error names the file that is missing or broken."""

from __future__ import annotations

import copy
import functools
import hashlib
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.documents import parse_json, parse_toml
from harmofl.errors import UsageError, describe
from harmofl.runs.folder import RunFolder
from harmofl.settings import Settings, Tree, read_toml
from harmofl.tasks.scores import Score, score_in

Record = Mapping[str, Any]

_AGGREGATES = ("average", "std")
_OPTIONAL = {"title": str, "norm": str, "best_round": int, "best_rounds": dict, "details": dict, "unseen": dict}
_IN_WORDS = {str: "text", int: "a whole number", dict: "an object"}
_REQUIRED = ("task", "method", "seed", "metric_name", "test")


@dataclass(frozen=True)
class FinishedRun:
    """What one finished run left behind."""

    folder: Path
    summary: Mapping[str, Any]
    records: Sequence[Record]
    config: str = ""
    facts: DataFacts | None = None
    """What was found in the images."""

    @property
    def model(self) -> Path:
        """The folder of the selected model."""
        return self.folder / "model"

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.summary["task"])

    @property
    def method(self) -> str:
        """The method's name in the catalogue."""
        return str(self.summary["method"])

    @property
    def title(self) -> str:
        """The method's display name."""
        return str(self.summary.get("title") or self.method)

    @property
    def seed(self) -> int:
        """The seed of initialization and order."""
        return int(self.summary["seed"])

    @functools.cached_property
    def score(self) -> Score:
        """What its scores are, which way is better, and how they are printed."""
        return score_in(self.summary)

    @property
    def norm(self) -> str:
        """The network's normalization layers, or nothing if the run did not say."""
        return str(self.summary.get("norm") or "")

    @property
    def rounds(self) -> int | None:
        """How many rounds it ran: all that it was to run, or fewer if it ended early; None if it did not say."""
        planned: int | None = _parse(self.config).get("training", {}).get("rounds")
        return int(self.summary["stopped_early"]["round"]) if self.summary.get("stopped_early") else planned

    @property
    def selected_last_round(self) -> bool:
        """Whether the selected model, or every site's own, is that of the last round."""
        own = self.summary.get("best_rounds") or {}
        selected = [*own.values()] or [self.summary.get("best_round")]
        rounds = self.rounds
        return rounds is not None and all(number == rounds for number in selected)

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting of the run, as `config.toml` holds them."""
        return copy.deepcopy(_parse(self.config))

    @functools.cached_property
    def full_settings(self) -> Settings:
        """The settings, validated, with what the images decide; those that the method has got since have defaults."""
        chosen = validate_settings(self.settings, RunFolder(self.folder).config)
        return self.facts.complete(chosen) if self.facts else chosen

    @property
    def is_synthetic(self) -> bool:
        """Whether the images were made by this software."""
        return self.facts is not None and self.facts.synthetic

    @property
    def scores(self) -> dict[str, float]:
        """The test score of each site, in the score's unit."""
        test = self.summary["test"]
        return {site: self.score.in_unit(score) for site, score in test.items() if site not in _AGGREGATES}

    @property
    def average(self) -> float:
        """The mean test score over sites, in the score's unit."""
        return self.score.in_unit(self.summary["test"]["average"])

    @property
    def scored_on(self) -> str:
        """Which images its scores are of: "test" or "validation"."""
        return str(self.summary.get("scored_on", "test"))

    def on_validation(self) -> FinishedRun:
        """The same run with its validation scores, of the selected round, in place of those on test images."""
        rounds = self.summary.get("best_rounds") or {}
        scores = {
            record["site"]: record["metric"]
            for record in self.records
            if record["phase"] == "val"
            and record["round"] == rounds.get(record["site"], self.summary.get("best_round"))
        }
        known = [scores[site] for site in self.scores if site in scores]
        average = statistics.fmean(known) if len(known) == len(self.scores) else None
        records = [{**record, "phase": "test"} for record in self.records if record["phase"] == "val"]
        records += [dict(record) for record in self.records if record["phase"] not in ("val", "test")]
        summary = {**self.summary, "test": {**scores, "average": average}, "scored_on": "validation"}
        return replace(self, summary=summary, records=records)

    def with_label(self, label: str) -> FinishedRun:
        """The same run under another title."""
        return replace(self, summary={**self.summary, "title": label})


def read_run(folder: Path | str) -> FinishedRun:
    """Read a run's folder; a UsageError names what is broken."""
    folder, files = Path(folder), RunFolder(Path(folder))
    return FinishedRun(
        folder=folder,
        summary=read_summary(files.summary),
        records=_read_records(files.records),
        config=_read_config(files.config),
        facts=read_facts(folder),
    )


def read_summary(path: Path) -> dict[str, Any]:
    """Read a run's `summary.json`; a UsageError names what is missing or broken."""
    text = _read_text(path, "is this the folder of a finished run? Continue an interrupted one with --resume")
    try:
        summary = parse_json(text)
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(summary, dict):
        raise UsageError(f"{path} should hold a JSON object, not {type(summary).__name__}")
    absent = [key for key in _REQUIRED if key not in summary]
    if absent:
        raise UsageError(f"{path} lacks {', '.join(absent)}")
    _check_test_scores(path, summary["test"])
    _check_values(path, summary)
    return summary


def read_facts(folder: Path) -> DataFacts | None:
    """What a run found in its images; None if it has not looked at them yet."""
    path = RunFolder(folder).data
    return DataFacts.read(path) if path.exists() else None


def read_settings(folder: Path) -> Settings:
    """The settings that a run was given; those that its method has got since have their defaults."""
    path = RunFolder(folder).config
    return validate_settings(read_toml(path), path)


def validate_settings(tree: Tree, path: Path) -> Settings:
    """Check settings; those that the method has got since they were written have their defaults."""
    method = tree.get("method", {})
    if isinstance(method, dict) and str(method.get("name")) in registry.methods:
        tree = tree | {"method": registry.methods.find(method["name"]).complete(method)}
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error)}") from None


def _read_text(path: Path, hint: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _check_test_scores(path: Path, test: object) -> None:
    if not isinstance(test, dict) or "average" not in test or not set(test) - set(_AGGREGATES):
        raise UsageError(f'{path}: "test" should hold a score per site and "average", found {test!r}')
    for site, score in test.items():
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
            raise UsageError(f'{path}: "test" of {site!r} should be a number, found {score!r}')


def _check_values(path: Path, summary: Mapping[str, Any]) -> None:
    kinds: dict[str, type] = {"task": str, "method": str, "metric_name": str, "seed": int}
    kinds |= {name: kind for name, kind in _OPTIONAL.items() if summary.get(name) is not None}
    for name, kind in kinds.items():
        if type(summary[name]) is not kind:
            raise UsageError(f'{path}: "{name}" should be {_IN_WORDS[kind]}, found {summary[name]!r:.200}')
    try:
        score_in(summary).check()
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(f'{path}: "score" is not one: {error!r:.200}') from None


def _read_records(path: Path) -> list[Record]:
    text = _read_text(path, "a run writes its records there")
    _check_records(path, text)
    lines = text.splitlines()
    return [_parse_record(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _check_records(path: Path, text: str) -> None:
    """Raise an error for records that have changed since the run ended; runs of before 0.2 noted no checksum."""
    noted = path.parent / "checkpoint" / "records.sha256"
    if noted.exists() and _read_text(noted, "").strip() != hashlib.sha256(text.encode()).hexdigest():
        raise UsageError(f"{path} is damaged, or has been changed since the run ended (its SHA-256 is in {noted})")


def _parse_record(path: Path, number: int, line: str) -> Record:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise UsageError(f"{path}, line {number} is not valid JSON: {error}") from None
    if not isinstance(record, dict) or not {"round", "site", "phase"} <= record.keys():
        raise UsageError(f"{path}, line {number} should hold round, site and phase, found {line!r}")
    return record


def _read_config(path: Path) -> str:
    if not path.exists():  # scores can be read without it
        return ""
    text = _read_text(path, "")
    try:
        parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    return text


@functools.lru_cache(maxsize=4096)
def _parse(config: str) -> dict[str, Any]:
    """A table asks every run for its settings many times, and parsing takes most of its time."""
    return tomllib.loads(config)
