"""Sites side by side: two workers against one, and against two threads of one.

Ratios are of the seconds of the clock. Where two processes at once do not get a core each, they say nothing: then
nothing is measured.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

from harmofl import registry
from harmofl.devices import num_cores
from harmofl.events import SERVER
from harmofl.federation.training import train
from measuring import Bound, Samples, benchmark, ratios

ROUNDS = 7
NUM_SITES = 4
"""A multiple of the workers: of five sites two workers train three and two, at best 1.67 times as fast as one."""
FREE = 0.95
"""The part of a core that each of two processes gets on a machine that is quiet."""
SECONDS_TO_SPIN = 2.0
WORKERS = {task: f"a round with one worker / with two, {task}" for task in ("histology", "nuclei")}
THREADS = {task: f"a round of one worker with two threads / two with one, {task}" for task in WORKERS}


def spin(seconds: float) -> float:
    """Work for so long; return the part of that time in which this process had a core."""
    started, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        pass
    return (time.process_time() - cpu) / (time.perf_counter() - started)


def are_two_cores_free() -> bool:
    """Whether two processes at once get a core each; others may work here if they give way."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return num_cores() >= 2 and min(pool.map(spin, [SECONDS_TO_SPIN] * 2, chunksize=1)) >= FREE


def seconds_of_rounds(task: str, workers: int, threads: int) -> list[float]:
    """The seconds of every round but the first, in which workers open their images."""
    known = registry.tasks.find(task)
    settings = {
        "data.sites": list(known.phantom.sites[:NUM_SITES]) if known.phantom else None,
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
    if not are_two_cores_free():
        print("  not measured: it needs two cores that nothing else uses", flush=True)
        return {}
    found: dict[str, list[float]] = {}
    for task in WORKERS:
        one, two = seconds_of_rounds(task, 1, 1), seconds_of_rounds(task, 2, 1)
        threads = seconds_of_rounds(task, 1, 2)
        found[WORKERS[task]] = ratios(one, [statistics.median(two)] * len(one))
        found[THREADS[task]] = ratios(threads, [statistics.median(two)] * len(threads))
    return found
