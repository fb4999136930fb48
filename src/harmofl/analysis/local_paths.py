"""Where each site would go from the global model: a few more local epochs, a snapshot after each."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from harmofl.analysis.directions import Weights
from harmofl.analysis.loaded_runs import LoadedRun
from harmofl.data.images import Site
from harmofl.errors import RunError
from harmofl.federation.client import Client
from harmofl.federation.messages import Request
from harmofl.methods.channel import Combining, announce
from harmofl.runs.store import Store
from harmofl.states import State, add_prefix, restoring, snapshot


@dataclass(frozen=True)
class LocalPath:
    """Steps away from the global model after each local epoch, the drift Γ of the first, and its number of steps K."""

    steps: list[Weights]
    drift: float
    num_steps: int


def combine_from_models(run: LoadedRun) -> State:
    """What the server would combine of what the pieces in the sites' models hold: a request comes with it."""
    pieces = run.method.pieces()
    combining = Combining(pieces, {}, len(run.models))
    for site, model in run.models.items():
        combining.add(site, announce(pieces, model))
    return combining.value()


def local_path(run: LoadedRun, site: Site, epochs: int, combined: State) -> LocalPath:
    """Train at one site as in the run, from its selected model, with a new optimizer and a constant learning rate.

    One request per epoch: a penalty that holds to the received model (FedProx, MOON) sees it anew in each.
    """
    model = run.models[site.name]
    weights = list(model.network.parameters())
    start = [weight.detach().clone() for weight in weights]
    last_round = run.settings.training.rounds
    steps, replies = [], []
    with tempfile.TemporaryDirectory() as folder, restoring([*model.parameters(), *model.buffers()]):
        client = _client(run, site, Path(folder))
        for number in range(last_round + 1, last_round + 1 + epochs):
            reply = client.answer(Request("path", "train", number, snapshot(model.network), combined))
            if reply.error:
                raise RunError(f"{run.label}, {site.name}: {reply.error}")
            replies.append(reply)
            steps.append([(weight - old).detach() for weight, old in zip(weights, start, strict=True)])
    model.zero_grad()
    model.eval()
    return LocalPath(steps, float(replies[0].metrics["train"]["drift"]), replies[0].num_steps)


def _client(run: LoadedRun, site: Site, folder: Path) -> Client:
    """The site with nothing kept from the run but what its harmonizer keeps for itself."""
    training = {"local_epochs": 1, "learning_rate_schedule": "constant"}
    settings = run.settings
    settings = settings.with_values("training", **training)
    model, store = run.models[site.name], Store(folder)
    if model.harmonizer.own:
        own = snapshot(model.harmonizer, sorted(model.harmonizer.own))
        store.save(settings.training.rounds, add_prefix("harmonizer", own))
    return Client(site, run.task, run.method, settings, model, store, model_folder=folder)
