"""Images from what a site sends after training: Geiping et al., "Inverting Gradients", NeurIPS 2020.

The attacker holds the network, knows the labels and how the site trains, and looks for images that would have made the
same update: cosine distance between updates, plus total variation, by Adam on the signs of the gradient, from several
random starts of which he keeps the one that fits best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad, vmap

from harmofl.analysis.phase_retrieval import Knowledge, with_amplitude
from harmofl.states import State

Loss = Callable[[Tensor, Tensor], Tensor]
Use = Literal["start", "penalty", "projection"]
SMALLEST_NORM = 1e-20
MILESTONES = (3 / 8, 5 / 8, 7 / 8)
"""Parts of the search after which its step becomes ten times smaller."""


@dataclass(frozen=True)
class LocalTraining:
    """What a site does with its images: full-batch SGD steps. One step is the gradient, but for its scale."""

    steps: int = 1
    learning_rate: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Search:
    """How the attacker looks for images."""

    iterations: int = 300
    restarts: int = 2
    learning_rate: float = 0.1
    smoothness: float = 0.1
    """Weight of the total variation."""
    penalty: float = 0.01
    """Weight of the distance to a known amplitude."""


@dataclass(frozen=True)
class Reconstruction:
    """The images (N, C, H, W) that were found and how far their update is from the one that was sent."""

    images: Tensor
    distance: float


Update = Callable[[Tensor, Tensor], State]


def update_of(network: nn.Module, loss: Loss, training: LocalTraining) -> Update:
    """A pure function from images and targets to what the site sends: new weights minus old ones."""
    start = {name: weight.detach() for name, weight in network.named_parameters()}
    buffers = {name: buffer.detach() for name, buffer in network.named_buffers()}

    def loss_at(weights: State, images: Tensor, targets: Tensor) -> Tensor:
        return loss(functional_call(network, (weights, buffers), (images,)), targets)

    def update(images: Tensor, targets: Tensor) -> State:
        weights, velocity = start, {name: torch.zeros_like(weight) for name, weight in start.items()}
        for _ in range(training.steps):
            slope = grad(loss_at)(weights, images, targets)
            for name, weight in weights.items():
                slope[name] = slope[name] + training.weight_decay * weight
            velocity = {name: training.momentum * velocity[name] + slope[name] for name in start}
            weights = {name: weights[name] - training.learning_rate * velocity[name] for name in start}
        return {name: weights[name] - start[name] for name in start}

    return update


def cosine_distance(update: State, sent: State) -> Tensor:
    """One minus the cosine of the angle between updates, over all weights at once; `update` may be a batch of them."""

    def product(one: State, other: State) -> Tensor:
        return torch.stack([(one[name] * other[name]).flatten(-sent[name].ndim).sum(-1) for name in sent]).sum(0)

    norms = product(update, update) * product(sent, sent)
    return 1 - product(update, sent) / norms.clamp_min(SMALLEST_NORM).sqrt()


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference between neighbours, down plus across; over the last three dimensions."""
    down, across = images.diff(dim=-2).abs(), images.diff(dim=-1).abs()
    return down.mean(dim=(-3, -2, -1)) + across.mean(dim=(-3, -2, -1))


def amplitude_distance(images: Tensor, known: Knowledge) -> Tensor:
    """Mean squared difference of log(1 + amplitude), so that every frequency counts; over the last three dimensions."""
    difference = torch.log1p(torch.fft.rfft2(images).abs()) - torch.log1p(known.amplitude)
    return torch.where(known.inside, difference, 0.0).square().mean(dim=(-3, -2, -1))


def invert(
    update: Update,
    sent: State,
    targets: Tensor,
    image_shape: tuple[int, ...],
    search: Search,
    generator: Generator,
    known: Knowledge | None = None,
    use: Use = "penalty",
) -> Reconstruction:
    """Look for the images of the given targets whose update is the one that was sent.

    `known`: an amplitude that the attacker also has; he starts from it, is drawn to it, or holds to it.
    """
    images = torch.rand(search.restarts, len(targets), *image_shape, generator=generator)
    if known and use == "start":
        images = with_amplitude(images, known).clamp(0, 1)
    images.requires_grad_()
    optimizer = torch.optim.Adam([images], lr=search.learning_rate)
    milestones = [int(part * search.iterations) for part in MILESTONES]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    updates = vmap(update, in_dims=(0, None))

    for _ in range(search.iterations):
        distances = cosine_distance(updates(images, targets), sent)
        score = distances + search.smoothness * total_variation(images).mean(dim=1)
        if known and use == "penalty":
            score = score + search.penalty * amplitude_distance(images, known).mean(dim=1)
        images.grad = torch.autograd.grad(score.sum(), images)[0].sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            if known and use == "projection":
                images.copy_(with_amplitude(images, known))
            images.clamp_(0, 1)
    candidates = images.detach()
    distances = cosine_distance(updates(candidates, targets), sent)
    best = int(distances.argmin())
    return Reconstruction(candidates[best], float(distances[best]))
