"""Where the time of a run went, as a table."""

from __future__ import annotations

from pathlib import Path

from harmofl.cli.tables import console, make_table
from harmofl.displays.profiling import BESIDE, PARTS
from harmofl.documents import read_json
from harmofl.runs.folder import RunFolder


def show_profile(out: Path) -> None:
    """The seconds of every part, over all processes, and their share; nothing if the run was finished before."""
    trace = RunFolder(out).profile
    if not trace.exists():
        return
    measured = read_json(trace)["otherData"]
    parts = measured["parts"]
    together = sum(total["seconds"] for part, total in parts.items() if part not in BESIDE) or 1.0
    table = make_table("part", "seconds", "share", "times", "what it is", title="Where the time went")
    for part, words in PARTS.items():
        if part in parts:
            share = "beside" if part in BESIDE else f"{100 * parts[part]['seconds'] / together:.1f} %"
            table.add_row(part, f"{parts[part]['seconds']:.2f}", share, f"{parts[part]['times']:.0f}", words)
    processes = "1 process" if measured["processes"] == 1 else f"{measured['processes']} processes"
    shown = console()
    shown.print(table)
    words = f"{together:.1f} s measured in {processes} within {measured['seconds']:.1f} s; as a trace: {trace}"
    shown.print(words, highlight=False, soft_wrap=True)
