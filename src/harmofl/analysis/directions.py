"""Directions in the space of a network's weights: drawn at random, found from paths, and paths seen in their plane."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from harmofl.data.images import seed_of

Weights = list[Tensor]
"""One tensor per parameter of a network, in the order of `parameters()`: its weights, or a step away from them."""


def random_direction(network: nn.Module, seed: int) -> Weights:
    """Draw a direction in which every filter moves by its own norm (Li et al., NeurIPS 2018).

    Biases and the parameters of norm layers do not move. Networks of one architecture get the same draw, each scaled
    to its own filters: how far a step goes then does not depend on how large their weights have grown.
    """
    return [_scaled_draw(network, name, weight, seed) for name, weight in network.named_parameters()]


def _scaled_draw(network: nn.Module, name: str, weight: Tensor, seed: int) -> Tensor:
    if weight.ndim < 2:
        return torch.zeros_like(weight)
    generator = Generator().manual_seed(seed_of(seed, name))
    draw = torch.randn(weight.shape, generator=generator).to(weight)
    layer = network.get_submodule(name.rpartition(".")[0])
    ratio = _filter_norms(weight, layer) / _filter_norms(draw, layer)
    # In the layout of the weight, so that adding it is fast.
    return torch.empty_like(weight, requires_grad=False).copy_(draw * ratio)


def _filter_norms(weight: Tensor, layer: nn.Module) -> Tensor:
    """The norm of each filter: of all that makes one output channel."""
    output = 1 if isinstance(layer, _ConvTransposeNd) else 0
    others = [axis for axis in range(weight.ndim) if axis != output]
    norms: Tensor = torch.linalg.vector_norm(weight.detach(), dim=others, keepdim=True)
    return norms


def principal_directions(steps: Sequence[Weights]) -> tuple[Weights, Weights]:
    """The two directions of length 1 whose plane, through zero, holds most of some steps away from a model."""
    stacked = torch.stack([flatten(step) for step in steps])
    _, _, components = torch.linalg.svd(stacked, full_matrices=False)
    first, second = (_towards(direction, stacked) for direction in components[:2])
    return _reshape(first, steps[0]), _reshape(second, steps[0])


def _towards(direction: Tensor, steps: Tensor) -> Tensor:
    """The direction with the sign that the longest of the steps' parts along it has: a factorization leaves it open."""
    along = steps @ direction
    return direction if along[along.abs().argmax()] >= 0 else -direction


def flatten(weights: Weights) -> Tensor:
    """All weights one after the other, in double precision."""
    return torch.cat([weight.detach().flatten().double() for weight in weights])


def _reshape(flat: Tensor, like: Weights) -> Weights:
    parts = torch.split(flat, [weight.numel() for weight in like])
    return [
        torch.empty_like(w, requires_grad=False).copy_(part.view_as(w)) for part, w in zip(parts, like, strict=True)
    ]


def project(step: Weights, plane: Sequence[Weights]) -> tuple[Tensor, float]:
    """A step's coordinates in a plane, by least squares, and the part ‖projection‖ / ‖step‖ of it that lies there."""
    flat = flatten(step)
    basis = torch.stack([flatten(direction) for direction in plane], dim=1)
    coordinates = torch.linalg.pinv(basis.T @ basis) @ (basis.T @ flat)
    length = float(flat.norm())
    return coordinates, float((basis @ coordinates).norm()) / length if length else 0.0
