"""A whole run against the bare loop, and how soon it begins.

The bare loop does the same mathematics as anyone would write it: in every round each site scores the global model on
its validation and test images and trains it for an epoch, and the models are averaged; at the end the last model is
scored. A run also sends messages, checks updates, writes records, checkpoints, what sites keep and what a live page
shows, and at the end a model and every score of it. CPU seconds from the second round: the first one opens the images.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from harmofl import registry
from harmofl.data.images import Site
from harmofl.devices import move_model, to_device
from harmofl.events import Event, RoundStarted
from harmofl.federation.optimizers import build_optimizer
from harmofl.federation.training import train
from harmofl.methods.penalties import squared_distance
from harmofl.settings import resolve
from harmofl.states import State, snapshot
from measuring import Bound, Samples, benchmark, cpu_seconds, in_turns, ratios

ROUNDS, QUICK_ROUNDS = 5, 3
REPEATS, QUICK_REPEATS = 5, 2
SHORT = 400
"""Images of a site in short rounds, where what is written weighs more; the preset has more."""
NAMES = {task: f"a whole run / the bare loop, {task}" for task in ("histology", "nuclei")}
SHORT_NAME = f"{NAMES['histology']}, rounds of {SHORT} images"


class Contest:
    """FedAvg on one task's phantom, as a run and as a bare loop."""

    def __init__(self, task_name: str, rounds: int, images: int | None = None) -> None:
        """`images`: of each site; the preset's if None."""
        self.changes = {
            **({"data.images": images} if images else {}),
            "training.rounds": rounds,
            "training.optimizer_state": "reset",
            "federation.workers": 1,
        }
        self.task = registry.tasks.find(task_name)
        self.settings, method = resolve(self.task.name, "fedavg", "small", overrides=self.changes)
        names = self.task.sites_of(self.settings.data)
        self.sites = [self.task.load_site(name, self.settings.data) for name in names]
        model = self.task.build_model(self.settings, method)
        move_model(model, torch.device("cpu"))
        self.network = model.network
        self.start = snapshot(self.network)

    def run_seconds(self) -> float:
        """CPU seconds of a run, from its second round to its end."""
        marks: list[float] = []

        def watch(event: Event) -> None:
            if isinstance(event, RoundStarted):
                marks.append(time.process_time())

        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            train(self.task.name, "fedavg", preset="small", settings=self.changes, out=out, watch=watch)
        return time.process_time() - marks[1]

    def bare_seconds(self) -> float:
        """CPU seconds of as many rounds of the bare loop."""
        return cpu_seconds(self.run_bare)

    def run_bare(self) -> None:
        """All rounds but the first."""
        state = self.start
        for number in range(2, self.settings.training.rounds + 1):
            states = []
            for site in self.sites:
                self.network.load_state_dict(state)
                self.score(site, thorough=False)
                self.descend(site, number)
                states.append(snapshot(self.network))
            state = average(states)
        self.network.load_state_dict(state)
        for site in self.sites:
            self.score(site, thorough=False)
            self.score(site, thorough=True)

    @torch.no_grad()
    def score(self, site: Site, thorough: bool) -> None:
        """Loss and scores on validation and test images, or all there are on test images."""
        self.network.eval()
        loss_of, batch_size = self.task.loss(self.settings), self.settings.training.batch_size
        for part in (site.test,) if thorough else (site.val, site.test):
            scorers = self.task.scorers(self.settings, thorough)
            for batch in next(iter(part.values())).batches(batch_size):
                logits = self.network(to_device(batch.images, torch.device("cpu")))
                float(loss_of(logits, batch.targets))
                for scorer in scorers:
                    scorer.add(logits, batch)
            for scorer in scorers:
                scorer.scores()

    def descend(self, site: Site, number: int) -> None:
        """An epoch of a site, with the drift of every step."""
        self.network.train()
        training, loss_of = self.settings.training, self.task.loss(self.settings)
        optimizer = build_optimizer(self.network, training, number)
        weights = list(self.network.parameters())
        start = [weight.detach().clone() for weight in weights]
        drift = torch.zeros(())
        for indices in torch.split(torch.randperm(len(site.train)), training.batch_size):
            batch = site.train.load(indices)
            optimizer.zero_grad()
            loss = loss_of(self.network(to_device(batch.images, torch.device("cpu"))), batch.targets)
            torch.autograd.backward(loss)
            optimizer.step()
            with torch.no_grad():
                drift += squared_distance(weights, start)


def average(states: list[State]) -> State:
    """The plain mean, entry by entry."""
    return {
        name: torch.stack([state[name] for state in states]).mean(dim=0, dtype=torch.float32).to(tensor.dtype)
        for name, tensor in states[0].items()
    }


@benchmark(Bound(NAMES["histology"], at_most=1.15, aim=1.1))
def whole_run(is_quick: bool) -> Samples:
    """What a run adds to the mathematics, for classification."""
    return {NAMES["histology"]: compare(Contest("histology", ROUNDS), REPEATS)}


@benchmark(Bound(NAMES["nuclei"], at_most=1.15, aim=1.1))
def whole_run_of_masks(is_quick: bool) -> Samples:
    """What a run adds to the mathematics, for segmentation."""
    return {NAMES["nuclei"]: compare(Contest("nuclei", ROUNDS), REPEATS)}


@benchmark(Bound(SHORT_NAME, at_most=1.25, quick=1.5))
def short_rounds(is_quick: bool) -> Samples:
    """What a run adds to rounds of eight steps."""
    rounds, repeats = (QUICK_ROUNDS, QUICK_REPEATS) if is_quick else (ROUNDS, REPEATS)
    return {SHORT_NAME: compare(Contest("histology", rounds, SHORT), repeats)}


def compare(contest: Contest, repeats: int) -> list[float]:
    """The ratios of a run to the bare loop."""
    taken = in_turns({"run": contest.run_seconds, "bare": contest.bare_seconds}, repeats)
    return ratios(taken["run"], taken["bare"])


# ---- the start ----

START = "harmofl train: CPU seconds until the first step"
PROGRAM = """
import os, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook
def report(*_):
    print("first step", time.process_time(), flush=True)
    os._exit(0)
register_optimizer_step_post_hook(report)
from harmofl.cli import main
main()
"""


@benchmark(Bound(START, at_most=5, unit="CPU s"))
def start(is_quick: bool) -> Samples:
    """From an empty process, imports included, to the first step of the optimizer; with one worker."""
    seconds_to_first_step()  # fills caches
    return {START: [seconds_to_first_step() for _ in range(3)]}


def seconds_to_first_step() -> float:
    """The CPU seconds of a process up to its first step."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--task", "histology", "--method", "harmofl", "--preset", "small", "--workers", "1"]
        command = [sys.executable, "-c", PROGRAM, "train", *options, "--out", str(Path(folder) / "run")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("first step ")]
    if not words:
        raise SystemExit(f"no step was made: {done.stderr}")
    return float(words[0][2])
