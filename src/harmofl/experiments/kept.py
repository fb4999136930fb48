"""Results that are kept apart from the runs: small, without any path of this machine, and enough for every table.

A cell whose configuration has a kept result counts as done, wherever below the folder that result lies: a grid can be
filled over several days, and two experiments share the cells that they have in common.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harmofl.data.cache import digest
from harmofl.errors import UsageError
from harmofl.experiments.cells import Cell, Experiment
from harmofl.files import write_whole
from harmofl.runs.finished import FinishedRun, read_run, read_settings
from harmofl.settings import Settings, differences, flatten
from harmofl.settings.schema import FOUND_IN_DATA

ROUNDS, SUMMARY = "rounds.csv", "summary.json"
COLUMNS = ("round", "site", "val", "test", "loss", "drift", "bytes_up", "bytes_down")
PATHS = ("data.folder", "data.cache", "model.initial")
DECIDED_BY_DATA = tuple(f"data.{name}" for name in FOUND_IN_DATA)
"""Settings that a plan may leave open for a folder, and that its run then knows."""

Record = Mapping[str, Any]


class Kept:
    """A folder of kept results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known = {path.parent: read_settings(path.parent) for path in sorted(folder.rglob(SUMMARY))}

    def find(self, experiment: Experiment, cell: Cell) -> Path | None:
        """Where the result of a run with the cell's configuration lies.

        First come results whose masks and labels are known, and of these its own place. If the configuration leaves
        open of which images, there must be one answer.
        """
        own, data = self._place(experiment, cell), cell.settings.data
        places = sorted(self._known, key=lambda place: (not self._known[place].data.annotations, place != own, place))
        found = (place for place in places if agree(cell.settings, self._known[place], paths=False))
        if not data.folder or data.fingerprints:
            return next(found, None)
        agreeing = list(found)
        if of_different_images([self._known[place] for place in agreeing]):
            named = ", ".join(map(str, agreeing))
            raise UsageError(f"{cell}: kept results of different images: {named}; remove those that are outdated")
        return agreeing[0] if agreeing else None

    def keep(self, experiment: Experiment, cell: Cell, run: Path) -> Path:
        """Copy a finished run's summary, configuration and scores of every round; nothing that is kept is replaced."""
        settings = without_paths(read_settings(run))
        own = self._place(experiment, cell)
        there = [place for place in (own, *sorted(own.parent.glob(f"{own.name}-*"))) if is_whole(place)]
        place = next((place for place in there if not differences(read_settings(place), settings)), None)
        if place is None:  # beside what is there of another preset, or of other images
            place = own.with_name(f"{own.name}-{digest(settings.to_toml())[:8]}") if own in there else own
            write_whole(place / "config.toml", settings.to_toml())
            write_whole(place / ROUNDS, to_rounds(read_run(run).records))
            write_whole(place / SUMMARY, (run / SUMMARY).read_bytes())
        self._known[place] = read_settings(place)
        return place

    def _place(self, experiment: Experiment, cell: Cell) -> Path:
        return self.folder / experiment.name / cell.path


def is_whole(place: Path) -> bool:
    """Whether a result is kept there: its summary is written last."""
    return (place / SUMMARY).exists()


def without_paths(settings: Settings) -> Settings:
    """The same settings, with nothing about this machine; of a first model's folder, the name remains."""
    initial = settings.model.initial
    elsewhere = settings.with_values("data", folder=None, cache=None)
    return elsewhere.with_values("model", initial=Path(initial).name if initial else None)


def agree(planned: Settings, done: Settings, paths: bool = True) -> bool:
    """Whether a run with the one would be the run with the other; `paths`: also of the same folder."""
    if (planned.seed, planned.task, planned.method) != (done.seed, done.task, done.method):  # seen at once, as most do
        return False
    if not paths:
        if bool(planned.data.folder) != bool(done.data.channels):  # known once a folder was read, never of a phantom
            return False
        changed = differences(without_paths(planned), without_paths(done))
    else:
        changed = differences(planned, done)
    if not planned.data.folder:
        return not changed
    values = flatten(planned.model_dump(mode="json"))
    return all(name in DECIDED_BY_DATA and values[name] is None for name in changed)


def of_different_images(each: Sequence[Settings]) -> bool:
    """Whether runs were made with more than one set of images, or of masks and labels as far as they know."""
    fingerprints = {str(settings.data.fingerprints) for settings in each}
    annotations = {str(settings.data.annotations) for settings in each if settings.data.annotations}
    return len(fingerprints) > 1 or len(annotations) > 1


def to_rounds(records: Iterable[Record]) -> str:
    """One line per round and site: validation and test score, training loss, drift, bytes sent."""
    rows: dict[tuple[int, str], dict[str, str]] = {}
    for record in records:
        if record["site"] == "server" or record.get("selected") or "error" in record:
            continue
        if record["phase"] in ("train", "val", "test"):
            rows.setdefault((record["round"], record["site"]), {}).update(_columns(record))
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({"round": number, "site": site} | row for (number, site), row in sorted(rows.items()))
    return text.getvalue()


def _columns(record: Record) -> dict[str, str]:
    if record["phase"] != "train":
        return {record["phase"]: f"{record['metric']:.5g}"}
    found = {name: f"{record[name]:.5g}" for name in ("loss", "drift") if name in record}
    return found | {name: str(record[name]) for name in ("bytes_up", "bytes_down") if name in record}


def from_rounds(text: str) -> Iterator[dict[str, Any]]:
    """The records of which `to_rounds` made the text."""
    for row in csv.DictReader(io.StringIO(text)):
        place = {"round": int(row["round"]), "site": row["site"]}
        trained = {name: json.loads(row[name]) for name in COLUMNS[4:] if row.get(name)}
        if trained:
            yield place | {"phase": "train"} | trained
        for phase in ("val", "test"):
            if row.get(phase):
                yield place | {"phase": phase, "metric": float(row[phase])}


def read_kept(folder: Path) -> FinishedRun:
    """A kept result, as if it were the run's folder."""
    path = folder / ROUNDS
    try:
        records = list(from_rounds(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return read_run(folder, records)
