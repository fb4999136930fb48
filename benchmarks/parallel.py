"""Sites side by side: two workers against one, and against two threads of one.

Ratios are of the seconds of the clock. With other work on the machine they say nothing: then nothing is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path

from harmofl.devices import num_cores
from harmofl.events import SERVER
from harmofl.federation.training import train
from measuring import Bound, Samples, benchmark, ratios

ROUNDS = 7
BUSY = 0.35
"""Processes a core that wait or run; with more, the machine is not quiet."""
WORKERS = {task: f"a round with one worker / with two, {task}" for task in ("histology", "nuclei")}
THREADS = {task: f"a round of one worker with two threads / two with one, {task}" for task in WORKERS}


def seconds_of_rounds(task: str, workers: int, threads: int) -> list[float]:
    """The seconds of every round but the first, in which workers open their images."""
    settings = {
        "training.rounds": ROUNDS,
        "federation.workers": workers,
        "federation.threads": threads,
        "data.images": 320 if task == "histology" else 100,
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        train(task, "fedavg", preset="small", settings=settings, out=out)
        records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return [record["seconds"] for record in records if record["site"] == SERVER][1:]


@benchmark(
    *(Bound(name, at_least=1.7) for name in WORKERS.values()),
    *(Bound(name, at_least=1.0) for name in THREADS.values()),
)
def workers(is_quick: bool) -> Samples:
    """What a second process gains."""
    if num_cores() < 2 or os.getloadavg()[0] > BUSY * num_cores():
        print("  not measured: it needs two cores that nothing else uses", flush=True)
        return {}
    found: dict[str, list[float]] = {}
    for task in WORKERS:
        one, two = seconds_of_rounds(task, 1, 1), seconds_of_rounds(task, 2, 1)
        threads = seconds_of_rounds(task, 1, 2)
        found[WORKERS[task]] = ratios(one, [statistics.median(two)] * len(one))
        found[THREADS[task]] = ratios(threads, [statistics.median(two)] * len(threads))
    return found
