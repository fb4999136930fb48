"""A federation of 5, 50 and 500 sites: what a site costs, and the server's memory.

Sites of a few tiny images train a small network in one process. The server's memory is measured over sites that send
back what they receive, in processes of their own, as the largest that the system has seen.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.data.images import LabelledImages
from harmofl.federation.messages import Reply, Request
from harmofl.federation.server import Server
from harmofl.federation.training import train
from harmofl.runs.folder import RunFolder
from harmofl.settings import DataSettings, resolve
from harmofl.states import num_bytes
from harmofl.tasks.task import Phantom, Task
from measuring import Bound, Samples, benchmark, cpu_seconds

FEW, SOME, MANY = 5, 50, 500
QUICK_SOME, QUICK_MANY = 20, 80
IMAGES, SIZE = 12, 16


def make_images(site: str, data: DataSettings) -> LabelledImages:
    """Noise, half of it brighter: what is learned does not matter here."""
    generator = torch.Generator().manual_seed(sum(site.encode()))
    labels = torch.arange(IMAGES) % 2
    images = torch.rand(IMAGES, 3, data.size, data.size, generator=generator) * 0.5 + 0.25 * labels.view(-1, 1, 1, 1)
    return LabelledImages(images, labels, torch.arange(IMAGES))


def task_of(num_sites: int) -> Task:
    """Histology at so many hospitals."""
    sites = tuple(f"hospital-{number:03d}" for number in range(num_sites))
    known = registry.tasks.find("histology")
    return replace(known, name=f"histology-{num_sites}", phantom=Phantom(sites, make_images))


def changes(rounds: int) -> dict[str, object]:
    """The settings of a run in one process."""
    return {"data.size": SIZE, "training.rounds": rounds, "federation.workers": 1}


def run(num_sites: int, rounds: int) -> None:
    """A whole run: training, scores, records, checkpoints, the model."""
    task = registry.register(task_of(num_sites))
    with tempfile.TemporaryDirectory() as folder:
        train(task.name, "fedavg", preset="smoke", settings=changes(rounds), out=Path(folder) / "run")


def seconds_per_site(num_sites: int, rounds: int) -> float:
    """CPU seconds of a run, by site."""
    return cpu_seconds(lambda: run(num_sites, rounds)) / num_sites


@benchmark(
    Bound(f"CPU seconds of a site, in a run of {MANY} / of {SOME}", at_most=1.2),
    Bound(f"CPU seconds of a site, in a run of {QUICK_MANY} / of {QUICK_SOME}", at_most=1.2, quick=1.4),
)
def time_per_site(is_quick: bool) -> Samples:
    """Whether the time of a run grows faster than the number of its sites."""
    many, some, rounds = (QUICK_MANY, QUICK_SOME, 1) if is_quick else (MANY, SOME, 2)
    run(FEW, 1)
    samples = [seconds_per_site(many, rounds) / seconds_per_site(some, rounds) for _ in range(1 if is_quick else 3)]
    return {f"CPU seconds of a site, in a run of {many} / of {some}": samples}


# ---- the server's memory ----


class Echoes:
    """Sites that send back what they receive; their replies come in the worst order."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """All of them."""
        return list(self._names)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Copies of what was sent, last site first."""
        for site, request in sorted(requests.items(), reverse=True):
            scores = {"loss": 1.0, "metric": 0.5}
            metrics = {"val": {site: scores}, "test": {site: scores}, "train": {"loss": 1.0, "drift": 0.0}}
            if request.kind == "evaluate":
                yield Reply(site, metrics={"val": {site: scores}, "test": {site: scores}}, num_examples=8)
                continue
            state = {name: tensor.clone() for name, tensor in request.state.items()}
            yield Reply(site, state, num_examples=8, num_steps=1, metrics=metrics)


def peak_of_server(connection: Connection, num_sites: int) -> None:
    """Run a server over echoing sites; send the largest memory that this process had, and the size of a model."""
    torch.set_num_threads(1)
    task = registry.register(task_of(num_sites))
    large = {"model.network": "densenet121", "model.features": 16}
    settings, method = resolve(task.name, "fedavg", "smoke", overrides=changes(2) | large)
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "run")
        sites = task.sites_of(settings.data)
        identifier = folder.begin(settings, DataFacts(True, sites, 3, task.classes), resume=False)
        server = Server(task, method, settings, Echoes(sites), folder, identifier)
        server.run()
        folder.release()
    unit = 1 if sys.platform == "darwin" else 1024
    connection.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, num_bytes(server.initial)))


def in_new_process(work: Callable[[Connection, int], None], number: int) -> tuple[int, int]:
    """What a function sends from a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, number))
    process.start()
    there.close()
    try:
        found: tuple[int, int] = here.recv()
    except EOFError:
        raise SystemExit("a process of the benchmark has died") from None
    process.join()
    return found


@benchmark(Bound(f"the server's memory with {MANY} sites - with {FEW}", at_most=3, unit="models"))
def server_memory(is_quick: bool) -> Samples:
    """How much more memory the server takes for many sites, in models."""
    few, model = in_new_process(peak_of_server, FEW)
    many, _ = in_new_process(peak_of_server, MANY)
    return {f"the server's memory with {MANY} sites - with {FEW}": [(many - few) / model]}
