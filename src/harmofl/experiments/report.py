"""The report of a run, of several runs or of an experiment: one page, from what their folder holds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from harmofl.errors import RunError, UsageError
from harmofl.experiments.experiment_report import report_experiment
from harmofl.experiments.state import RESULTS, is_experiment
from harmofl.extras import require
from harmofl.files import FULL_OR_BROKEN
from harmofl.reporting.comparisons import Comparison, compare_with
from harmofl.reporting.gallery import read_gallery
from harmofl.reporting.page import Additions, next_steps_for, seen_from, write_page
from harmofl.reporting.tables import methods_of
from harmofl.reporting.words import missing_sentence, summarize, title_for
from harmofl.runs.finished import FinishedRun, read_run
from harmofl.runs.model_folder import has_one_model

PAGE = "report.html"


def write_report(folder: Path | str, reference: str | None = None) -> Path:
    """Write `report.html` into the folder of a run, of several runs or of an experiment; return its path.

    reference: the row of the table with which all others are compared, in place of the experiment's own
    """
    require("reports", "a report")
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: name that of a run, of several runs or of an experiment")
    page = folder / PAGE
    try:
        (report_experiment if is_experiment(folder) else _report_runs)(folder, page, reference)
    except OSError as error:
        kind = RunError if error.errno in FULL_OR_BROKEN else UsageError
        raise kind(f"{page} cannot be written: {error.strerror or error}") from None
    return page


def _report_runs(folder: Path, page: Path, reference: str | None) -> None:
    finished = [path.parent for path in sorted(folder.rglob("summary.json"))]
    started = [path.parent for path in sorted(folder.rglob("config.toml"))]
    unfinished = [path for path in started if path not in finished]
    if not finished:
        raise UsageError(f"{folder} holds {_what_instead(unfinished)}")
    runs = [read_run(path) for path in finished]
    reason = "not finished: continue it with harmofl train --resume"
    missing = [(path.relative_to(folder).as_posix(), reason) for path in unfinished]
    write_page(
        page,
        title=title_for(runs),
        summary_sentences=[*summarize(runs), *missing_sentence(len(missing), len(runs) + len(missing), "run")],
        runs=runs,
        next_steps=_steps_after(runs, folder),
        additions=Additions(
            comparisons=_compare(runs, reference) if reference else (),
            missing=missing,
            gallery=read_gallery(folder),
        ),
    )


def _compare(runs: Sequence[FinishedRun], reference: str) -> list[Comparison]:
    methods = methods_of(runs)
    places = {method.label: (method.label, "") for method in methods}
    return compare_with(reference, "", methods, places)


def _what_instead(unfinished: Sequence[Path]) -> str:
    if unfinished:
        return f"no finished run yet: continue {unfinished[0]} with harmofl train --resume"
    return f"neither a finished run (summary.json) nor an experiment ({RESULTS}): nothing to report"


def _steps_after(runs: Sequence[FinishedRun], folder: Path) -> list[tuple[str, str]]:
    """What to do next: with images of one's own, use the model; else there is more to try."""
    if not any(run.settings.get("data", {}).get("folder") for run in runs):
        return next_steps_for(runs, folder)
    models = [run.folder / "model" for run in runs if (run.folder / "model").is_dir()]
    if not models:
        return []
    model = shlex.quote(seen_from(folder, models[0]))
    whose = "" if has_one_model(models[0]) else " --site SITE"
    return [
        ("Score the model on other labelled images", f"harmofl evaluate {model} --data FOLDER"),
        ("Predict for new images", f"harmofl predict {model} IMAGES{whose} --out predictions"),
    ]
