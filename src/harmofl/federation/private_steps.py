"""Image-level differential privacy: DP-SGD (Abadi et al., CCS 2016), with Opacus' gradients of single images.

For each step every image is drawn by itself, with probability batch_size / images (Poisson sampling), as the accountant
assumes. The gradient of each drawn image is shortened to `clip`; their sum gets normal noise and is divided by the
batch size that was to be expected. In the limit of a clip that no gradient reaches, without noise, the step is plain
descent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from harmofl.federation.noise import Noise
from harmofl.methods.steps import ComputeLoss
from harmofl.settings import Settings

TOLERANCE = 1e-3
"""Of the mean of images' gradients, relative to the gradient of their batch."""


@dataclass(frozen=True)
class PrivateDescent:
    """One step of DP-SGD; the network must have been prepared by `single_gradients`."""

    clip: float
    deviation: float
    """Of the noise on each number of the sum of gradients."""
    batch_size: float
    """How many images are drawn on average."""
    noise: Noise

    def __call__(self, model: nn.Module, optimizer: Optimizer, compute_loss: ComputeLoss) -> Tensor:
        """Change the weights once; the loss must be a mean over images, and may be of none."""
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer.zero_grad()
        with warnings.catch_warnings():  # torch's, on hooks where no input needs a gradient: images do not
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            loss = compute_loss()
            loss.backward()  # type: ignore[no-untyped-call]
        singles = {number: found for number, weight in enumerate(weights) if (found := _take(weight)) is not None}
        _check({weights[number]: single for number, single in singles.items()})
        squares = [single.double().flatten(1).square().sum(dim=1) for single in singles.values()]
        if squares:
            factors = (self.clip / torch.stack(squares).sum(dim=0).sqrt().clamp_min(1e-30)).clamp_max(1.0)
        for number, weight in enumerate(weights):
            total = torch.zeros_like(weight, dtype=torch.float64)
            if number in singles:
                total += torch.tensordot(factors, singles[number].double(), dims=1)
            total += self.noise.normal(weight, self.deviation)
            weight.grad = torch.empty_like(weight).copy_(total / self.batch_size)
        optimizer.step()
        return loss.detach()


@dataclass(frozen=True)
class PrivateRound:
    """What a site's private training in one round needs."""

    step: PrivateDescent
    generator: Generator
    """That draws the images: nobody may know which, or drawing protects nobody."""


@contextmanager
def private_round(
    settings: Settings, network: nn.Module, open_noise: Callable[[], Noise]
) -> Iterator[PrivateRound | None]:
    """Prepare a network for private steps, if the settings ask for them, and put it back afterwards."""
    privacy, training = settings.privacy, settings.training
    if not privacy.image_level:
        yield None
        return
    noise = open_noise()
    deviation = privacy.image_noise * privacy.image_clip
    step = PrivateDescent(privacy.image_clip, deviation, float(training.batch_size), noise)
    with single_gradients(network):
        yield PrivateRound(step, Generator().manual_seed(noise.seed()))


@contextmanager
def single_gradients(network: nn.Module) -> Iterator[None]:
    """For a block, a backward pass leaves every image's own gradient at the weights, as `grad_sample`."""
    from opacus.grad_sample import GradSampleHooks

    in_place = [layer for layer in network.modules() if getattr(layer, "inplace", False)]
    for layer in in_place:  # the hooks need what such a layer would overwrite; its numbers stay the same
        setattr(layer, "inplace", False)  # noqa: B010 - torch declares attributes of layers as tensors
    # Opacus 1.6 computes other gradients of convolutions where tensors are stored channels-last.
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    plain = network.register_forward_pre_hook(lambda _, inputs: tuple(each.contiguous() for each in inputs))
    hooks = GradSampleHooks(network, batch_first=True, loss_reduction="mean", strict=True)
    try:
        yield
    finally:
        hooks.remove_hooks()
        plain.remove()
        for layer in network.modules():
            vars(layer).pop("activations", None)
        for weight in network.parameters():
            _take(weight)
        for layer in in_place:
            setattr(layer, "inplace", True)  # noqa: B010


def _check(singles: Mapping[nn.Parameter, Tensor]) -> None:
    """Raise an error unless the mean of the images' gradients is the gradient of the batch.

    Otherwise what is clipped would not be what an image contributes, and ε would promise too much.
    """
    known = {weight: weight.grad for weight in singles if weight.grad is not None}
    errors = [(singles[weight].mean(dim=0) - whole).norm() for weight, whole in known.items()]
    lengths = [whole.norm() for whole in known.values()]
    if errors and not torch.stack(errors).norm() <= TOLERANCE * torch.stack(lengths).norm() + 1e-6:
        raise RuntimeError(
            "gradients of single images do not sum to that of their batch: the network does not allow it"
        )


def _take(weight: nn.Parameter) -> Tensor | None:
    """The gradients of single images at a weight, which is then without them."""
    found: Tensor | None = getattr(weight, "grad_sample", None)
    if found is not None:
        setattr(weight, "grad_sample", None)  # noqa: B010 - Opacus' own
    return found
