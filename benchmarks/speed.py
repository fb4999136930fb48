"""What our training loop costs, for a classification and a segmentation network.

- How much slower than the plainest loop that does the same mathematics (the drift included)?
- How much slower is a HarmoFL step, with its amplitude fixed, than a FedAvg step? It makes two passes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from harmofl import registry
from harmofl.federation.client import Client
from harmofl.federation.messages import Reply, Request
from harmofl.federation.optimizers import build_optimizer
from harmofl.methods.penalties import squared_distance
from harmofl.runs.store import Store
from harmofl.settings import Settings, resolve
from harmofl.states import State, snapshot
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

    def seconds(self, number: int = 1) -> float:
        """The CPU seconds of a round's steps, as the site itself measures them."""
        with patch("time.perf_counter", time.process_time):
            reply = self._train(number, self.start)
        return float(reply.metrics["train"]["seconds"])

    def train_before(self) -> int:
        """Train a first round, from another model, of which methods keep something; return the next round's number."""
        self._train(1, {name: tensor * 0.999 for name, tensor in self.start.items() if tensor.is_floating_point()})
        return 2

    def _train(self, number: int, state: State) -> Reply:
        request = Request("bench", "train", number, state={**self.start, **state}, combined=self.combined)
        reply = self.client.answer(request)
        if reply.error:
            raise SystemExit(reply.error)
        return reply

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


@dataclass(frozen=True)
class Cheaper:
    """A perturbed step that costs less than two passes, and how much it may cost against FedAvg's."""

    method: str
    changes: Changes
    at_most: float = 1.1
    aim: float | None = None
    quick: float | None = None

    def bound(self, words: str) -> Bound:
        """Under the name of its benchmark."""
        name = f"a step of {words} / a FedAvg step, histology"
        return Bound(name, at_most=self.at_most, aim=self.aim, quick=self.quick)


CHEAPER = {
    "Momentum-SAM": Cheaper("momentum-sam", {}, quick=1.4),
    "FedLESAM": Cheaper("fedlesam", {}),
    "HarmoFL with reuse = 2": Cheaper("harmofl", {"method.reuse": 2}, at_most=1.65),
    "HarmoFL with reuse = 5": Cheaper("harmofl", {"method.reuse": 5}, at_most=1.35),
    "HarmoFL with reuse = 10": Cheaper("harmofl", {"method.reuse": 10}, at_most=1.2, aim=1.1),
    "HarmoFL with ascent_fraction = 0.25": Cheaper("harmofl", {"method.ascent_fraction": 0.25}, at_most=1.65),
    "HarmoFL with reuse = 5, ascent_fraction = 0.25": Cheaper(
        "harmofl", {"method.reuse": 5, "method.ascent_fraction": 0.25}, at_most=1.2, aim=1.1
    ),
    "HarmoFL with reuse = 10, ascent_fraction = 0.25": Cheaper(
        "harmofl", {"method.reuse": 10, "method.ascent_fraction": 0.25}, at_most=1.15, aim=1.1
    ),
}


@benchmark(*(each.bound(words) for words, each in CHEAPER.items()))
def cheaper_steps(is_quick: bool) -> Samples:
    """Perturbed steps whose direction is known before, or serves several of them; ten steps a round."""
    chosen = {words: each for words, each in CHEAPER.items() if each.quick or not is_quick}
    images = {"data.images": 500}
    with tempfile.TemporaryDirectory() as folder:
        contenders = {"FedAvg": TrainingSite("histology", "fedavg", Path(folder) / "FedAvg", images).seconds}
        for number, (words, each) in enumerate(chosen.items()):
            site = TrainingSite("histology", each.method, Path(folder) / str(number), {**images, **each.changes})
            contenders[words] = partial(site.seconds, site.train_before())
        taken = in_turns(contenders, QUICK_REPEATS if is_quick else 2 * REPEATS)
    return {each.bound(words).name: ratios(taken[words], taken["FedAvg"]) for words, each in chosen.items()}
