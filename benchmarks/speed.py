"""What our training loop costs, as ratios measured in one interleaved run.

Two questions, each for a classification and a segmentation network:
- how much slower than the plainest loop that does the same mathematics (the drift included)? At most 1.05.
- how much slower is a HarmoFL step, with its amplitude fixed, than a FedAvg step? It makes two passes: at most 2.1,
  for the default band and for the full spectrum.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from harmofl import registry
from harmofl.federation.client import Client
from harmofl.federation.messages import Request
from harmofl.federation.optimizers import build_optimizer
from harmofl.methods.penalties import squared_distance
from harmofl.runs.store import Store
from harmofl.settings import Settings, resolve
from harmofl.states import snapshot

REPEATS = 9
LIMITS = {"loop / plain loop": 1.05, "HarmoFL / FedAvg": 2.1, "HarmoFL, full band / FedAvg": 2.1}


class Contender:
    """One site's client for one method, ready to train the same round again and again."""

    def __init__(self, task_name: str, method_name: str, folder: Path, **more: str) -> None:
        changes = {"training.optimizer_state": "reset"}
        changes |= {f"method.{name}": value for name, value in more.items()}
        self.settings, method = resolve(task_name, method_name, "small", overrides=changes)
        self.task = registry.tasks.find(task_name)
        self.model = self.task.build_model(self.settings, method)
        site = self.task.load_site(self.task.sites_of(self.settings.data)[0], self.settings.data)
        store = Store(folder / method_name)
        self.train = site.train.load(torch.arange(len(site.train)))
        self.client = Client(site, self.task, method, self.settings, self.model, store, folder / "model")
        self.start = snapshot(self.model.network)
        self.combined = self.client.answer(Request("bench", "measure", 0)).sent

    def seconds(self) -> float:
        """How long the round takes."""
        request = Request("bench", "train", 1, state=self.start, combined=self.combined)
        reply = self.client.answer(request)
        if reply.error:
            raise SystemExit(reply.error)
        return float(reply.metrics["train"]["seconds"])


def plain_loop(contender: Contender) -> float:
    """FedAvg's local epoch as anyone would write it, with the drift of every step."""
    settings: Settings = contender.settings
    network, train = contender.model.network, contender.train
    network.load_state_dict(contender.start)
    network.train()
    optimizer = build_optimizer(network, settings.training, round_number=1)
    weights = list(network.parameters())
    started = time.perf_counter()
    start = [weight.detach().clone() for weight in weights]
    drift, total = torch.zeros(()), torch.zeros(())
    order = torch.randperm(len(train))
    for indices in torch.split(order, settings.training.batch_size):
        images = train.images[indices].contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        loss = contender.task.loss(contender.settings)(network(images), train.targets[indices])
        torch.autograd.backward(loss)
        optimizer.step()
        with torch.no_grad():
            total += loss * len(indices)
            drift += squared_distance(weights, start)
    return time.perf_counter() - started


def compare(task: str, folder: Path) -> dict[str, float]:
    """The median of each ratio over interleaved repeats."""
    fedavg, harmofl = Contender(task, "fedavg", folder), Contender(task, "harmofl", folder)
    full = Contender(task, "harmofl", folder, band="full")
    plain_loop(fedavg), fedavg.seconds(), harmofl.seconds(), full.seconds()  # the first pass of each is not counted
    ratios: dict[str, list[float]] = {name: [] for name in LIMITS}
    for _ in range(REPEATS):
        ours, plain, perturbed, whole = fedavg.seconds(), plain_loop(fedavg), harmofl.seconds(), full.seconds()
        ratios["loop / plain loop"].append(ours / plain)
        ratios["HarmoFL / FedAvg"].append(perturbed / ours)
        ratios["HarmoFL, full band / FedAvg"].append(whole / ours)
    return {name: statistics.median(values) for name, values in ratios.items()}


def main() -> int:
    """Print every ratio; fail if one is above its limit."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    within = True
    for task in ("histology", "nuclei"):
        with tempfile.TemporaryDirectory() as folder:
            for name, ratio in compare(task, Path(folder)).items():
                within &= ratio <= LIMITS[name]
                print(f"{task:10} {name:28} {ratio:.3f}   (at most {LIMITS[name]})")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
