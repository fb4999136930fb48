"""Pictures of a task's images, or of what finished runs make of theirs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harmofl.analysis.hospitals import parse_band
from harmofl.devices import check_device
from harmofl.errors import UsageError
from harmofl.events import Watch, ignore
from harmofl.experiments.finding import find_runs
from harmofl.extras import require
from harmofl.reporting.pictures import draw_appearance, draw_cases
from harmofl.settings import resolve
from harmofl.tasks.data_facts import find_data_facts


def draw_pictures(
    runs: Sequence[Path],
    out: Path,
    task: str | None = None,
    data: Path | None = None,
    preset: str | None = None,
    bands: Sequence[str | float] | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    watch: Watch = ignore,
) -> list[Path]:
    """Draw a task's images before and after harmonization, or runs' masks and classes for their test images."""
    require("reports", "drawing pictures")
    check_device(device)
    if runs:
        given = {"task": task, "preset": preset, "band": bands, "settings": settings}
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} = {value!r}: runs have their own; leave it out, or leave out the runs")
        return draw_cases(find_runs(runs, data), out, device, watch)
    if not task:
        raise UsageError("nothing to draw: name a task (--task), or the folders of finished runs")
    chosen = [parse_band(str(band)) for band in bands or ("dc", "full")]
    overrides = dict(settings or {}) | ({"data.folder": os.path.abspath(data)} if data else {})
    resolved, _ = resolve(task, "fedavg", preset, overrides=overrides)
    return draw_appearance(find_data_facts(resolved, watch).complete(resolved), chosen, out, device, watch)
