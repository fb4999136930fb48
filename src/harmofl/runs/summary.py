"""What `summary.json` says of a finished run."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence

import torch

from harmofl.methods.method import Method
from harmofl.runs.folder import Record
from harmofl.runs.selection import AVERAGE, Selection
from harmofl.settings import Settings
from harmofl.tasks.task import Task
from harmofl.version import __version__


def summarize(
    task: Task, method: Method, settings: Settings, selection: Selection, records: Sequence[Record], seconds: float
) -> Record:
    """The test scores of the selected model, per site, and what is needed to read them."""
    selected = {record["site"]: record for record in records if record.get("selected")}
    sites = task.sites_of(settings.data)
    scores = {site: selected[site]["metric"] for site in sites if site in selected}
    spread = statistics.stdev(scores.values()) if len(scores) > 1 else 0.0
    return {
        "task": task.name,
        "method": method.key,
        "title": method.name,
        "seed": settings.seed,
        "preset": settings.preset,
        "norm": settings.model.norm,
        "metric_name": task.score_for(settings).name,
        "score": task.score_for(settings).to_json(),
        **_best_rounds(selection),
        "test": scores | {"average": statistics.fmean(scores.values()), "std": spread},
        "missing": [site for site in sites if site not in scores],
        **_unseen(records),
        "details": {site: _details(selected[site]) for site in scores},
        "versions": {"harmofl": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "seconds": seconds,
    }


def _unseen(records: Sequence[Record]) -> Record:
    """The scores at a hospital that took no part; they count in no average."""
    found = {record["site"]: _details(record) for record in records if record["phase"] == "unseen"}
    return {"unseen": found} if found else {}


def _best_rounds(selection: Selection) -> Record:
    if not selection.per_site:
        return {"best_round": selection.round_for(AVERAGE)}
    return {"best_round": None, "best_rounds": {site: best.round for site, best in selection.best.items()}}


def _details(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in ("site", "phase", "selected")}
