"""The landscape of some runs: measured, then written as tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harmofl.analysis.landscape import landscape
from harmofl.devices import check_device
from harmofl.events import Watch, ignore
from harmofl.extras import require
from harmofl.files import check_writable
from harmofl.reporting.landscape_figures import write_figures
from harmofl.reporting.landscape_table import write_tables


def draw_landscape(
    runs: Sequence[Path], out: Path, device: str = "auto", watch: Watch = ignore, **options: int
) -> list[Path]:
    """Measure the loss around the models of runs on the same data, and draw it; return the files.

    `options`: images, points, local_epochs and seed, as in `landscape`.
    """
    require("reports", "drawing a landscape")
    check_device(device)
    check_writable(out)
    found = landscape(runs, out, device=device, watch=watch, **options)
    return write_tables(found, out) + write_figures(found, out)
