"""A network with its representation and its norm layers.

`catalogue.py` holds the networks that there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from harmofl.errors import UsageError
from harmofl.models.volumes import Volume
from harmofl.models.weight_standardization import remove_norms
from harmofl.registry import Kind

Norm = Literal["batch", "batch-statistics", "instance", "group", "weight-standardization"]
GROUPS = 8
SMALLEST_DEVIATION = 0.01
"""Of images in [0, 1]: below it, noise of an empty part of a scan would be blown up."""


class Network(nn.Module):
    """Any network, with the output of one of its layers, averaged over the image, as its representation."""

    def __init__(self, body: nn.Module, representation_layer: str, standardizes: bool = False) -> None:
        """`standardizes`: bring each channel of an image to mean 0 and standard deviation 1 first."""
        super().__init__()
        self.body = body
        self.representation_layer = representation_layer
        self.standardizes = standardizes

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.body(self._prepare(images))
        return logits

    def _prepare(self, images: Tensor) -> Tensor:
        return standardize(images) if self.standardizes else images

    def represent(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and representation (N, features) of one pass."""
        captured: list[Tensor] = []
        with self._hooked(captured.append):
            logits: Tensor = self.body(self._prepare(images))
        return logits, averaged(captured[0])

    def representation(self, images: Tensor) -> Tensor:
        """Return the representation alone, in a pass that ends where it is known."""

        def stop(features: Tensor) -> None:
            raise _KnownError(features)

        with self._hooked(stop):
            try:
                self.body(self._prepare(images))
            except _KnownError as known:
                return averaged(known.features)
        raise RuntimeError(f"the network never reached its layer {self.representation_layer!r}")

    @contextmanager
    def _hooked(self, tell: Callable[[Tensor], None]) -> Iterator[None]:
        layer = self.body.get_submodule(self.representation_layer)
        handle = layer.register_forward_hook(lambda _layer, _inputs, output: tell(output))
        try:
            yield
        finally:
            handle.remove()


class _KnownError(Exception):
    """Carries the features out of a pass that need not go on."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


def standardize(images: Tensor) -> Tensor:
    """Images (N, C, …) with mean 0 and standard deviation 1 in each channel; what is almost flat stays so.

    >>> standardize(torch.tensor([[[0.25, 0.75]]]))
    tensor([[[-1.,  1.]]])
    """
    axes = tuple(range(2, images.ndim))
    deviations, means = torch.std_mean(images, dim=axes, correction=0, keepdim=True)
    return (images - means) / deviations.clamp_min(SMALLEST_DEVIATION)


def averaged(features: Tensor) -> Tensor:
    """Features (N, C, …) averaged over the image, in single precision at least."""
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    return features.flatten(2).mean(dim=2) if features.ndim > 2 else features


def set_norm(network: nn.Module, norm: Norm) -> None:
    """Replace every batch norm layer of a network by the chosen kind, or do without."""
    if norm == "weight-standardization":
        remove_norms(network)
        return
    for parent in list(network.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
                setattr(parent, name, _norm_layer(norm, layer))


def _instance_norm(replaced: nn.Module) -> Callable[..., nn.Module]:
    """The instance norm of as many dimensions as a batch norm has."""
    if isinstance(replaced, nn.BatchNorm3d):
        return nn.InstanceNorm3d
    return nn.InstanceNorm2d if isinstance(replaced, nn.BatchNorm2d) else nn.InstanceNorm1d


def _norm_layer(norm: Norm, replaced: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> nn.Module:
    """A layer for the features of the batch norm that it replaces."""
    batch_norm, channels = type(replaced), replaced.num_features
    layers: dict[Norm, Callable[[], nn.Module]] = {
        "batch": lambda: batch_norm(channels),
        "batch-statistics": lambda: batch_norm(channels, affine=False, track_running_stats=False),
        "instance": lambda: _instance_norm(replaced)(channels, affine=True),
        "group": lambda: nn.GroupNorm(math.gcd(GROUPS, channels), channels),
    }
    return layers[norm]()


@dataclass(frozen=True)
class NetworkEntry:
    """A network that can be chosen by its name (`model.network`).

    Attributes:
        name: what users call it.
        kinds: what it is for. From images (N, channels, H, W), a network for classification gives logits
            (N, classes), one for segmentation logits (N, classes, H, W).
        build: makes it, freshly initialized, from the numbers of input channels and of classes and from
            `model.features`. Its batch norm layers become what `model.norm` says. None: it is for volumes only.
        representation_layer: the layer whose output, averaged over the image, represents an image (MOON compares
            these), as `nn.Module.get_submodule` finds it.
        build_volume: makes the network for volumes (N, channels, D, H, W), `data.dimensions = 3`, from the same numbers
            and a `Volume`: the size of its input, the spacing of the voxels. None: it is for images only.
        takes_strides: whether `build_volume` follows the volume's strides (`model.strides`).

    >>> def build(channels, classes, features):
    ...     return nn.Sequential(nn.Conv2d(channels, features, 3, padding=1), nn.Conv2d(features, classes, 1))
    >>> entry = NetworkEntry("two-convolutions", ("segmentation",), build, representation_layer="0")
    >>> tuple(build(3, 2, 8)(torch.rand(1, 3, 16, 16)).shape)
    (1, 2, 16, 16)
    """

    name: str
    kinds: tuple[Kind, ...]
    build: Callable[[int, int, int], nn.Module] | None
    representation_layer: str
    build_volume: Callable[[int, int, int, Volume], nn.Module] | None = None
    takes_strides: bool = False

    @property
    def dimensions(self) -> tuple[int, ...]:
        """What it can be built for: images (2), volumes (3) or both."""
        builders = {2: self.build, 3: self.build_volume}
        return tuple(number for number, builder in builders.items() if builder is not None)


def build_network(
    entry: NetworkEntry,
    channels: int,
    classes: int,
    features: int,
    norm: Norm,
    seed: int,
    volume: Volume | None = None,
    standardizes: bool = False,
) -> Network:
    """Build a freshly initialized network; the same seed gives the same weights whatever ran before.

    `volume`: what it must know of volumes; without it, it is for images. `standardizes`: bring each image to mean 0
    and standard deviation 1 first.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if volume is None:
            assert entry.build is not None
            body = entry.build(channels, classes, features)
        else:
            assert entry.build_volume is not None
            body = entry.build_volume(channels, classes, features, volume)
        set_norm(body, norm)
    try:
        body.get_submodule(entry.representation_layer)
    except AttributeError as error:
        raise UsageError(f"network {entry.name!r}: representation_layer: {error}") from None
    return Network(body, entry.representation_layer, standardizes)
