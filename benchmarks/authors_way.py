"""Whole rounds of HarmoFL, ours against the way of the code released with the paper: same images, network and batch.

Their way, written here from its description: amplitudes are normalized image by image in NumPy, in double precision and
with the whole complex transform, in every forward pass; a step makes two passes and restores the weights by
subtraction; images and weights are in PyTorch's plain layout. What it does besides is left out, though it takes time:
sums of states that are listed anew for every entry, a score of every training batch, checkpoints by pickle.

A round is one local epoch of a site, the scores of the received model on its validation and test images, and the
average of five sites' models. Each way has a process of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harmofl import AmplitudeNormalization
from harmofl.devices import keep_freed_memory
from harmofl.federation.messages import Request
from harmofl.federation.optimizers import build_optimizer
from harmofl.methods.aggregation import start_aggregation
from harmofl.methods.layers import Band
from harmofl.methods.server_rules import Average
from harmofl.states import State, snapshot
from measuring import Bound, Samples, Work, benchmark, in_processes, in_turns, ratios
from numpy_amplitude import NumpyAmplitude, mean_amplitude
from speed import Changes, TrainingSite

NUM_SITES = 5
REPEATS = 5
RADIUS = 0.05

SIZES: Mapping[str, tuple[str, str, Changes]] = {
    "DenseNet121, 96 × 96, batch 32": ("histology", "paper", {"data.images": 100, "training.batch_size": 32}),
    "U-Net, 256 × 256, batch 4": ("nuclei", "paper", {"data.images": 10, "training.batch_size": 4}),
    "U-Net, 384 × 384, batch 2": (
        "nuclei",
        "paper",
        {"data.images": 10, "data.size": 384, "training.batch_size": 2},
    ),
    "small DenseNet": ("histology", "small", {"data.images": 160}),
    "small U-Net": ("nuclei", "small", {"data.images": 60}),
}
NAMES = {size: f"a round their way / ours, {size}" for size in SIZES}


def make_site(size: str, folder: Path) -> TrainingSite:
    """The site that both ways train; its amplitude is measured before the first round, and only the mean is moved."""
    task, preset, more = SIZES[size]
    changes = {"method.schedule": "before-training", "method.band": "dc", **more}
    return TrainingSite(task, "harmofl", folder, changes, preset)


def prepare_ours(size: str, folder: Path) -> Work:
    """A round as this software does it."""
    site = make_site(size, folder)
    trainable = {name for name, _ in site.model.network.named_parameters()}

    def work() -> None:
        request = Request("bench", "train", 1, state=site.start, combined=site.combined, score=True)
        reply = site.client.answer(request)
        if reply.error:
            raise RuntimeError(reply.error)
        aggregation = start_aggregation(Average(), site.start, trainable)
        for _ in range(NUM_SITES):
            aggregation.add(reply.state, 1.0, reply.num_steps, 0.0)
        aggregation.finish({}, 1.0)

    return work


# ---- their way ----


def prepare_theirs(size: str, folder: Path) -> Work:
    """A round as the released code does it, memory and all: what a step frees goes back to the system."""
    with patch("harmofl.federation.client.keep_freed_memory"):
        site = make_site(size, folder)
    network = site.task.build_model(site.settings, site.client.method).network
    start = snapshot(network)
    harmonize = NumpyAmplitude(mean_amplitude(site.train.images))

    def work() -> None:
        network.load_state_dict(start)
        score(site, network, harmonize)
        train(site, network, harmonize)
        average([network.state_dict()] * NUM_SITES)

    return work


def train(site: TrainingSite, network: nn.Module, harmonize: NumpyAmplitude) -> None:
    """One local epoch."""
    network.train()
    optimizer = build_optimizer(network, site.settings.training, round_number=1)
    loss_of = site.task.loss(site.settings)
    for indices in torch.split(torch.randperm(len(site.train)), site.settings.training.batch_size):
        images, targets = site.train.images[indices], site.train.targets[indices]
        torch.autograd.backward(loss_of(network(harmonize(images)), targets))
        moves = climb(optimizer)
        torch.autograd.backward(loss_of(network(harmonize(images)), targets))
        descend(optimizer, moves)


@torch.no_grad()
def climb(optimizer: Optimizer) -> dict[Tensor, Tensor]:
    """Add the perturbation to the weights; return it."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
    norm = torch.norm(torch.stack([weight.grad.norm(p=2) for weight in weights]), p=2)
    moves = {}
    for weight in weights:
        moves[weight] = weight.grad * (RADIUS / (norm + 1e-12))
        weight.add_(moves[weight])
    optimizer.zero_grad()
    return moves


@torch.no_grad()
def descend(optimizer: Optimizer, moves: Mapping[Tensor, Tensor]) -> None:
    """Subtract the perturbation again, and make the optimizer's step."""
    for weight, move in moves.items():
        weight.sub_(move)
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def score(site: TrainingSite, network: nn.Module, harmonize: NumpyAmplitude) -> None:
    """Loss and scores on validation and test images."""
    network.eval()
    loss_of = site.task.loss(site.settings)
    for part in (site.client.site.val, site.client.site.test):
        scorers = site.task.scorers(site.settings, thorough=False)
        for batch in next(iter(part.values())).batches(site.settings.training.batch_size):
            logits = network(harmonize(batch.images))
            float(loss_of(logits, batch.targets))
            for scorer in scorers:
                scorer.add(logits, batch)
        for scorer in scorers:
            scorer.scores()


@torch.no_grad()
def average(states: list[State]) -> State:
    """The plain mean, entry by entry."""
    result = {}
    for name, tensor in states[0].items():
        total = torch.zeros_like(tensor, dtype=torch.float32)
        for state in states:
            total += state[name] / len(states)
        result[name] = total.to(tensor.dtype)
    return result


# ---- what is measured ----


def compare(size: str, repeats: int) -> Samples:
    """How many times as long a round takes their way."""
    ways = {"theirs": prepare_theirs, "ours": prepare_ours}
    with tempfile.TemporaryDirectory() as folder:
        prepares = {name: partial(prepare, size, Path(folder) / name) for name, prepare in ways.items()}
        with in_processes(prepares) as contenders:
            taken = in_turns(contenders, repeats)
    return {NAMES[size]: ratios(taken["theirs"], taken["ours"])}


@benchmark(Bound(NAMES["DenseNet121, 96 × 96, batch 32"], at_least=1.1, aim=1.5))
def densenet(is_quick: bool) -> Samples:
    """The paper's classification network."""
    return compare("DenseNet121, 96 × 96, batch 32", REPEATS)


@benchmark(Bound(NAMES["U-Net, 256 × 256, batch 4"], at_least=1.1, aim=1.35))
def unet(is_quick: bool) -> Samples:
    """The paper's segmentation network, on nuclei."""
    return compare("U-Net, 256 × 256, batch 4", REPEATS)


@benchmark(Bound(NAMES["U-Net, 384 × 384, batch 2"], at_least=1.1, aim=1.35))
def large_unet(is_quick: bool) -> Samples:
    """The paper's segmentation network, on images as large as its prostates."""
    return compare("U-Net, 384 × 384, batch 2", REPEATS)


@benchmark(
    Bound(NAMES["small DenseNet"], at_least=2.0, quick=1.4),
    Bound(NAMES["small U-Net"], at_least=1.1, aim=2.0, quick=1.05),
)
def small_networks(is_quick: bool) -> Samples:
    """Networks for few cores."""
    repeats = 2 if is_quick else 2 * REPEATS
    return {**compare("small DenseNet", repeats), **compare("small U-Net", repeats)}


@benchmark(
    Bound("amplitude alone, theirs / ours, the whole spectrum", at_least=6.5, aim=8, quick=5),
    Bound("amplitude alone, theirs / ours, the zero frequency", at_least=100, quick=50),
)
def amplitude(is_quick: bool) -> Samples:
    """The layer alone, with its amplitude fixed, on a batch of 32 images of 96 × 96; each way in a process of its own.

    As in training, ours keeps the memory that it frees.
    """
    found = {}
    bands: Mapping[Band, str] = {"full": "the whole spectrum", "dc": "the zero frequency"}
    for band, words in bands.items():
        prepares = {"theirs": partial(prepare_their_layer, band), "ours": partial(prepare_our_layer, band)}
        with in_processes(prepares) as contenders:
            taken = in_turns(contenders, 5 if is_quick else 15)
        per_call = {name: [seconds / CALLS[name] for seconds in taken[name]] for name in taken}
        found[f"amplitude alone, theirs / ours, {words}"] = ratios(per_call["theirs"], per_call["ours"])
    return found


CALLS = {"theirs": 2, "ours": 20}


def images_to_harmonize() -> Tensor:
    """The batch."""
    return torch.rand(32, 3, 96, 96, generator=torch.Generator().manual_seed(0))


def prepare_our_layer(band: Band) -> Work:
    """Calls of our layer."""
    keep_freed_memory()
    images = images_to_harmonize()
    layer = AmplitudeNormalization((3, 96, 96), band)
    layer.measure([images])
    layer.freeze()
    return partial(call, layer, images, CALLS["ours"])


def prepare_their_layer(band: Band) -> Work:
    """Calls of theirs."""
    images = images_to_harmonize()
    return partial(call, NumpyAmplitude(mean_amplitude(images), full=band == "full"), images, CALLS["theirs"])


@torch.no_grad()
def call(layer: Callable[[Tensor], Tensor], images: Tensor, times: int) -> None:
    """Call a layer several times, as training does: nothing in front of the network has a gradient."""
    for _ in range(times):
        layer(images)
