"""What our training loop costs, for a classification and a segmentation network.

- How much slower than the plainest loop that does the same mathematics (the drift included)?
- How much slower is a HarmoFL step, with its amplitude fixed, than a FedAvg step? It makes two passes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import torch

from harmofl import registry
from harmofl.federation.client import Client
from harmofl.federation.messages import Request
from harmofl.federation.optimizers import build_optimizer
from harmofl.methods.penalties import squared_distance
from harmofl.runs.store import Store
from harmofl.settings import Settings, resolve
from harmofl.states import snapshot
from measuring import Bound, Samples, benchmark, cpu_seconds, in_turns, ratios

REPEATS, QUICK_REPEATS = 9, 5
TASKS = ("histology", "nuclei")

Changes = Mapping[str, object]
"""Settings as {"section.name": value}."""


class TrainingSite:
    """One site's client for one method, ready to train the same round again and again."""

    def __init__(
        self, task_name: str, method_name: str, folder: Path, settings: Changes | None = None, preset: str = "small"
    ) -> None:
        changes = {"training.optimizer_state": "reset", **(settings or {})}
        self.settings, method = resolve(task_name, method_name, preset, overrides=changes)
        self.task = registry.tasks.find(task_name)
        self.model = self.task.build_model(self.settings, method)
        site = self.task.load_site(self.task.sites_of(self.settings.data)[0], self.settings.data)
        store = Store(folder / method_name)
        self.train = site.train.load(torch.arange(len(site.train)))
        self.client = Client(site, self.task, method, self.settings, self.model, store, folder / "model")
        self.start = snapshot(self.model.network)
        self.combined = self.client.answer(Request("bench", "measure", 0)).sent

    def seconds(self) -> float:
        """The CPU seconds of the round's steps, as the site itself measures them."""
        request = Request("bench", "train", 1, state=self.start, combined=self.combined)
        with patch("time.perf_counter", time.process_time):
            reply = self.client.answer(request)
        if reply.error:
            raise SystemExit(reply.error)
        return float(reply.metrics["train"]["seconds"])

    def plain_seconds(self) -> float:
        """The CPU seconds of FedAvg's local epoch as anyone would write it, with the drift of every step."""
        settings: Settings = self.settings
        network, train = self.model.network, self.train
        network.load_state_dict(self.start)
        network.train()
        optimizer = build_optimizer(network, settings.training, round_number=1)
        weights, loss_of = list(network.parameters()), self.task.loss(settings)

        def epoch() -> None:
            start = [weight.detach().clone() for weight in weights]
            drift, total = torch.zeros(()), torch.zeros(())
            for indices in torch.split(torch.randperm(len(train)), settings.training.batch_size):
                images = train.images[indices].contiguous(memory_format=torch.channels_last)
                optimizer.zero_grad()
                loss = loss_of(network(images), train.targets[indices])
                torch.autograd.backward(loss)
                optimizer.step()
                with torch.no_grad():
                    total += loss * len(indices)
                    drift += squared_distance(weights, start)

        return cpu_seconds(epoch)


@benchmark(
    *(Bound(f"our loop / the plainest loop, {task}", at_most=1.05, quick=1.3) for task in TASKS),
    *(Bound(f"a HarmoFL step / a FedAvg step, {task}", at_most=2.1, quick=2.7) for task in TASKS),
    *(Bound(f"a HarmoFL step with the whole spectrum / a FedAvg step, {task}", at_most=2.1) for task in TASKS),
)
def loops(is_quick: bool) -> Samples:
    """The loop against the plainest one, and HarmoFL against FedAvg."""
    found: dict[str, list[float]] = {}
    for task in TASKS:
        with tempfile.TemporaryDirectory() as folder:
            found |= compare(task, Path(folder), is_quick)
    return found


def compare(task: str, folder: Path, is_quick: bool) -> dict[str, list[float]]:
    """The ratios of one task."""
    images = {"data.images": 100 if is_quick else 160}
    fedavg = TrainingSite(task, "fedavg", folder, images)
    contenders = {"plain": fedavg.plain_seconds, "fedavg": fedavg.seconds}
    contenders["harmofl"] = TrainingSite(task, "harmofl", folder, images).seconds
    if not is_quick:
        contenders["full"] = TrainingSite(task, "harmofl", folder, {**images, "method.band": "full"}).seconds
    taken = in_turns(contenders, QUICK_REPEATS if is_quick else REPEATS)
    found = {
        f"our loop / the plainest loop, {task}": ratios(taken["fedavg"], taken["plain"]),
        f"a HarmoFL step / a FedAvg step, {task}": ratios(taken["harmofl"], taken["fedavg"]),
    }
    if not is_quick:
        name = f"a HarmoFL step with the whole spectrum / a FedAvg step, {task}"
        found[name] = ratios(taken["full"], taken["fedavg"])
    return found


CHEAPER: Mapping[str, Changes] = {
    "reuse = 10": {"method.reuse": 10},
    "reuse = 5, ascent_fraction = 0.25": {"method.reuse": 5, "method.ascent_fraction": 0.25},
}
CHEAPER_NAMES = {words: f"a HarmoFL step with {words} / a FedAvg step, histology" for words in CHEAPER}


@benchmark(*(Bound(name, at_most=1.4, aim=1.1) for name in CHEAPER_NAMES.values()))
def cheaper_steps(is_quick: bool) -> Samples:
    """Perturbed steps whose direction serves several of them; ten steps a round."""
    images = {"data.images": 500}
    with tempfile.TemporaryDirectory() as folder:
        contenders = {"fedavg": TrainingSite("histology", "fedavg", Path(folder), images).seconds}
        for words, changes in CHEAPER.items():
            contenders[words] = TrainingSite("histology", "harmofl", Path(folder), {**images, **changes}).seconds
        taken = in_turns(contenders, REPEATS)
    return {name: ratios(taken[words], taken["fedavg"]) for words, name in CHEAPER_NAMES.items()}
