"""The privacy study: attacks on a run, which is trained first if none is given, and a page of what they found."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harmofl.analysis.crafted_weights import CraftedStudy, Sizes
from harmofl.analysis.privacy import attack_run
from harmofl.analysis.privacy_target import QUICK, Effort
from harmofl.devices import threads
from harmofl.errors import UsageError
from harmofl.events import StepDone, Watch, ignore
from harmofl.extras import require
from harmofl.federation.training import train
from harmofl.files import check_writable, write_whole
from harmofl.methods.method import Method
from harmofl.reporting.crafted_table import crafted_page
from harmofl.reporting.privacy_figures import write_privacy_pages
from harmofl.runs.finished import read_run
from harmofl.runs.folder import Record, RunFolder
from harmofl.settings import Settings, resolve


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


def crafted_study(
    out: str | Path,
    task: str = "histology",
    *,
    seed: int = 0,
    run: str | Path | None = None,
    quick: bool = False,
    watch: Watch = ignore,
) -> Record:
    """Let a server with crafted weights read training images; write `crafted.json` and `crafted.md`, return the former.

    `run`: a finished run whose task, images and network are taken; otherwise the task's phantom and its small preset.
    """
    out = Path(out)
    check_writable(out)
    settings, method = _settings_of(Path(run)) if run else _small_settings(task)
    sizes = Sizes(images=16, batch=8, public=16) if quick else Sizes()
    with threads(1):  # the tensors are small
        study = CraftedStudy(settings, method, sizes, seed)
        cases = []
        for case in study.run():
            cases.append(case)
            watch(StepDone(f"crafted weights: {case['case']}", len(cases) - 1, len(cases)))
    record = study.describe() | {"seed": seed, "sizes": asdict(sizes), "cases": cases}
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "crafted.json", json.dumps(record, indent=1) + "\n")
    write_whole(out / "crafted.md", crafted_page(record))
    return record


def _settings_of(run: Path) -> tuple[Settings, Method]:
    finished = read_run(run)
    settings, method = resolve(file=finished.settings)
    return (finished.facts.complete(settings) if finished.facts else settings), method


def _small_settings(task: str) -> tuple[Settings, Method]:
    effort = Effort()
    return resolve(task, "fedavg", "small", overrides={"data.size": effort.size, "data.images": effort.site_images})


def _train(out: Path, task: str, effort: Effort, seed: int, data: str | Path | None, watch: Watch) -> Path:
    settings: dict[str, Any] = {"data.size": effort.size, "training.rounds": effort.rounds, "federation.workers": 1}
    settings |= {} if data else {"data.images": effort.site_images}
    resume = RunFolder(out).config.exists()
    train(task, "fedavg", out=out, data=data, seed=seed, settings=settings, resume=resume, watch=watch)
    return out
