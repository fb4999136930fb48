"""The privacy study: attacks on a run, which is trained first if none is given, and a page of what they found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from harmofl.analysis.privacy import attack_run
from harmofl.analysis.privacy_target import QUICK, Effort
from harmofl.errors import UsageError
from harmofl.events import Watch, ignore
from harmofl.extras import require
from harmofl.federation.training import train
from harmofl.files import check_writable
from harmofl.reporting.privacy_figures import write_privacy_pages
from harmofl.runs.folder import Record, RunFolder


def privacy_study(
    out: str | Path,
    task: str = "histology",
    *,
    images: int | None = None,
    restarts: int | None = None,
    iterations: int | None = None,
    seed: int = 0,
    run: str | Path | None = None,
    data: str | Path | None = None,
    quick: bool = False,
    watch: Watch = ignore,
) -> Record:
    """Attack one site's training images, write numbers, pictures and `privacy.md` to `out`, and return the numbers.

    `images`, `restarts`, `iterations` are those of gradient inversion. `run`: a finished run whose task, data and model
    are attacked; otherwise a small one is trained. `data`: a folder of images, instead of the task's phantom.
    """
    require("reports", "the pictures of the study")
    if run and data:
        raise UsageError(f"--data {data}: the run says which images are attacked; leave out --run or --data")
    given = {"images": images, "restarts": restarts, "iterations": iterations}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    effort = replace(QUICK if quick else Effort(), **chosen)
    out = Path(out)
    check_writable(out)
    attacked = Path(run) if run else _train(out / "run", task, effort, seed, data, watch)
    record = attack_run(attacked, out, effort, seed, watch)
    write_privacy_pages(out)
    return record


def _train(out: Path, task: str, effort: Effort, seed: int, data: str | Path | None, watch: Watch) -> Path:
    settings: dict[str, Any] = {"data.size": effort.size, "training.rounds": effort.rounds, "federation.workers": 1}
    settings |= {} if data else {"data.images": effort.site_images}
    resume = RunFolder(out).config.exists()
    train(task, "fedavg", out=out, data=data, seed=seed, settings=settings, resume=resume, watch=watch)
    return out
