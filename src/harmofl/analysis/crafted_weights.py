"""A server that crafts weights, and reads pieces of training images out of what a site sends after training.

After Boenisch et al., "When the Curious Abandon Honesty" (EuroS&P 2023), and Fowl et al., "Robbing the Fed" (ICLR
2022). A site builds its network itself, so there is no room for a module of the server's; but the norm layer behind the
first convolution can be set so that each of its channels lets about one place of all images through (a trap). The
gradient of that channel's weights is then the piece of the image at this place, seen through the norm layer: times a
number that the gradient of its bias tells, minus what the norm layer takes away, which the server knows from images
like them.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from harmofl import registry
from harmofl.data.images import ImageSet, LabelledImages, Site, seed_of
from harmofl.errors import UsageError
from harmofl.federation.client import Client
from harmofl.federation.messages import Request
from harmofl.federation.moves import move_towards
from harmofl.methods.method import Method
from harmofl.runs.folder import Record
from harmofl.runs.store import Store
from harmofl.settings import Settings, TrainingSettings
from harmofl.states import State, snapshot

GAIN = 0.02
"""Of the trapped channels: a small one makes a small bias a high threshold."""
WHISPERS = {"sgd": (0.02,), "adam": (0.02, 1e-9)}
"""By what the last layer's weights are multiplied: small gradients leave the trap as it is from step to step, and below
Adam's epsilon they even leave its steps in proportion."""
LOUDNESS = (0.02, 1.0)
"""The same where noise is added, which drowns small gradients."""
SILENT = 1e-6
"""Of the largest change of a bias: below it, no place passed the trap."""
READ, AHEAD = 25.0, 3.0
"""A piece counts as read from so many dB on, if it is so many dB nearer to a trained image than to any other one."""
NOISES = (1e-4, 1e-3, 1e-2)
"""Standard deviation of the noise on each number, as a part of the length to which updates are clipped."""


@dataclass(frozen=True)
class Trap:
    """The first convolution of a network, the batch norm behind it, and its last layer."""

    convolution: str
    norm: str
    last: str
    layer: nn.Conv2d

    def pieces(self, images: Tensor) -> Tensor:
        """Every piece of images that the convolution sees: (places, numbers)."""
        size, stride, padding = self.layer.kernel_size, self.layer.stride, self.layer.padding
        assert not isinstance(padding, str)
        return functional.unfold(images, size, padding=padding, stride=stride).transpose(1, 2).flatten(0, 1)

    @property
    def filters(self) -> str:
        """The name of the convolution's weights."""
        return f"{self.convolution}.weight"


def find_trap(network: nn.Module) -> Trap:
    """Where a trap can be set; an error where there is no batch norm behind the first convolution, or no classifier."""
    layers = dict(network.named_modules())
    convolution = next((name for name, layer in layers.items() if type(layer) is nn.Conv2d), "")
    norm = next((name for name, layer in layers.items() if isinstance(layer, nn.BatchNorm2d) and layer.affine), "")
    if not (convolution and norm) or layers[norm].num_features != layers[convolution].out_channels:
        raise UsageError("crafted weights: this network has no batch norm of its own behind its first convolution")
    first = layers[convolution]
    assert isinstance(first, nn.Conv2d)
    *_, last = (name for name, layer in layers.items() if list(layer.parameters(recurse=False)))
    if not isinstance(layers[last], nn.Linear):
        raise UsageError(
            "crafted weights: this trap is for networks that classify whole images, such as the DenseNets; this one "
            f"ends in {last} ({type(layers[last]).__name__}), with an answer for every pixel, and no trap has been "
            "made for it yet, which does not mean that there is none"
        )
    return Trap(convolution, norm, last, first)


@dataclass(frozen=True)
class Public:
    """What a server knows from images like those of the site: how pieces of them are distributed."""

    mean: Tensor
    covariance: Tensor
    responses: Tensor
    """Of every piece to every filter, brought to mean 0 and deviation 1: (places, channels), in order."""
    deviations: Tensor
    """Of the responses before."""

    @classmethod
    def of(cls, pieces: Tensor, filters: Tensor) -> Public:
        """What there is to know of the images' pieces and a convolution's filters (channels, numbers)."""
        responses = pieces @ filters.T
        deviations, means = torch.std_mean(responses, dim=0)
        ordered = ((responses - means) / deviations).sort(dim=0).values
        return cls(pieces.mean(dim=0), pieces.T.cov(), ordered, deviations)

    def thresholds(self, places: int) -> Tensor:
        """What one of so many places exceeds, for each channel."""
        rank = min(len(self.responses) - 1, round(len(self.responses) * (1 - 1 / places)))
        return self.responses[rank]


def set_trap(state: State, trap: Trap, public: Public, places: int, whisper: float) -> State:
    """Weights whose first norm layer lets about one of so many places through in each channel."""
    gains, last = torch.full_like(state[f"{trap.norm}.weight"], GAIN), f"{trap.last}.weight"
    biases = -GAIN * public.thresholds(places)
    return state | {f"{trap.norm}.weight": gains, f"{trap.norm}.bias": biases, last: whisper * state[last]}


def decay_of(training: TrainingSettings, steps: int) -> float:
    """By what part weight decay has shrunk weights after some steps of SGD with momentum; Adam hides it."""
    if training.optimizer != "sgd":
        return 0.0
    carried = sum(training.momentum**earlier for step in range(steps) for earlier in range(step + 1))
    return training.learning_rate * training.weight_decay * carried


def read_pieces(before: State, after: State, trap: Trap, public: Public, steps: int, decay: float) -> Tensor:
    """The piece of an image that each channel shows: (channels, numbers); NaN where nothing passed.

    `decay`: by what part weight decay has shrunk all weights, which the server knows.
    """

    def change(name: str) -> Tensor:
        return after[name] - before[name] * (1 - decay)

    filters, biases = change(trap.filters).flatten(1), change(f"{trap.norm}.bias")
    gains, kept = change(f"{trap.norm}.weight"), 0.9**steps
    # The running statistics tell those of the site's batches.
    means, variances = (
        (after[f"{trap.norm}.{name}"] - kept * before[f"{trap.norm}.{name}"]) / (1 - kept)
        for name in ("running_mean", "running_var")
    )
    deviations, own = variances.clamp_min(1e-12).sqrt(), before[trap.filters].flatten(1)
    mean = public.mean + torch.linalg.pinv(own) @ (means - own @ public.mean)
    along = own @ public.covariance * (deviations / public.deviations.square())[:, None]
    shown = filters * (deviations / (before[f"{trap.norm}.weight"] * biases))[:, None]
    pieces: Tensor = (shown + mean + (gains / biases)[:, None] * along).clamp(0, 1)
    silent = biases.abs() <= SILENT * biases.abs().max()
    return pieces.masked_fill(silent[:, None], torch.nan)


def nearest(pieces: Tensor, images: Tensor) -> Tensor:
    """PSNR of each piece against the most similar one of images, in dB."""
    squared = torch.cdist(pieces, images).amin(dim=1).square() / pieces.shape[1]
    return -10 * squared.clamp_min(1e-10).log10()


def count_read(pieces: Tensor, trained: Tensor, others: Tensor) -> Record:
    """How many pieces are those of trained images, and how near the best ones are."""
    shown = pieces[pieces.isfinite().all(dim=1)]
    if not len(shown):
        return {"channels": len(pieces), "fired": 0, "read": 0, "psnr": None, "psnr_others": None}
    inside, outside = nearest(shown, trained), nearest(shown, others)
    read = (inside >= READ) & (inside >= outside + AHEAD)
    return {
        "channels": len(pieces),
        "fired": len(shown),
        "read": int(read.sum()),
        "psnr": round(float(inside.mean()), 1),
        "psnr_others": round(float(outside.mean()), 1),
    }


@dataclass(frozen=True)
class Sizes:
    """How much is tried."""

    images: int = 64
    """Of each site, for an epoch."""
    batch: int = 16
    public: int = 64
    """Images that the server has of its own, of the same hospital."""


class CraftedStudy:
    """The attack on the first convolution of one run's network, case by case."""

    def __init__(self, settings: Settings, method: Method, sizes: Sizes, seed: int = 0) -> None:
        self.settings, self.method, self.sizes, self.seed = settings, method, sizes, seed
        self.task = registry.tasks.find(settings.task)
        self.names = list(self.task.sites_of(settings.data))
        self.model = self.task.build_model(settings, method)
        self.initial = snapshot(self.model.network)
        self.trap = find_trap(self.model.network)
        self.trainable = [name for name, _ in self.model.network.named_parameters()]
        self.images: dict[str, LabelledImages] = {}
        self.others: dict[str, Tensor] = {}
        """Pieces of each hospital's other images."""
        for name in self.names:
            drawn = self._draw(self.task.load_site(name, settings.data).train, sizes.images + sizes.public)
            self.images[name] = drawn.at(torch.arange(sizes.images))
            self.others[name] = self.trap.pieces(drawn.images[sizes.images :])
        self.public = Public.of(self.others[self.names[0]], self.initial[self.trap.filters].flatten(1))

    def describe(self) -> Record:
        """What is attacked."""
        height, width = self.trap.layer.kernel_size
        return {
            "task": self.task.name,
            "network": self.settings.model.network,
            "site": self.names[0],
            "synthetic": self.settings.data.is_synthetic,
            "image_shape": list(self.task.image_shape(self.settings.data)),
            "piece": f"{height} × {width}",
        }

    def _draw(self, images: ImageSet, count: int) -> LabelledImages:
        if len(images) < count:
            raise UsageError(f"crafted weights: {count} training images are needed, and there are {len(images)}")
        order = torch.randperm(len(images), generator=Generator().manual_seed(seed_of(self.seed, "crafted")))
        return images.load(order[:count])

    def run(self) -> Iterator[Record]:
        """Try each case; a record of each."""
        epoch, batch, (sgd,), first = self.sizes.images, self.sizes.batch, WHISPERS["sgd"], self.names[0]
        yield self._case("one image, one step of SGD", self._trapped(1, sgd), {first: 1})
        step = f"one batch of {batch} images, one step of SGD"
        yield self._case(step, self._trapped(batch, sgd), {first: batch})
        for noise in NOISES:
            name = f"{step}, noise of {noise:g} of the update's length on each number"
            tried = [self._case(name, self._trapped(batch, loud), {first: batch}, noise=noise) for loud in LOUDNESS]
            yield max(tried, key=_success)
        every, trapped = f"an epoch of {epoch} images in batches of {batch}", self._trapped(epoch, sgd)
        yield self._case(f"{every}, SGD", trapped, {first: epoch})
        tried = [
            self._case(f"{every}, Adam", self._trapped(epoch, whisper), {first: epoch}, "adam")
            for whisper in WHISPERS["adam"]
        ]
        yield max(tried, key=_success)
        yield self._case(f"{every}, SGD, the seed's own weights", self.initial, {first: epoch})
        for number, state in enumerate(self._steps_to(trapped, 3), start=1):
            rounds = f"{number} round{'s'[: number > 1]}"
            yield self._case(f"{every}, SGD, as far as the default policy allows in {rounds}", state, {first: epoch})
        for number in sorted({2, len(self.names)}):
            counts = dict.fromkeys(self.names[:number], epoch)
            yield self._case(
                f"{every}, SGD, only the sum of {number} sites", self._trapped(number * epoch, sgd), counts
            )

    def _trapped(self, images: int, whisper: float) -> State:
        places = images * len(self.others[self.names[0]]) // self.sizes.public
        return set_trap(self.initial, self.trap, self.public, places, whisper)

    def _steps_to(self, wanted: State, rounds: int) -> Iterator[State]:
        """The crafted weights as they can be after each round, if sites' training changed nothing in between."""
        start = {name: self.initial[name] for name in self.trainable}
        state = start
        for _ in range(rounds):
            state = move_towards(state, {name: wanted[name] for name in self.trainable}, start)
            yield self.initial | state

    def _case(
        self, name: str, sent: State, counts: Mapping[str, int], optimizer: str = "sgd", noise: float = 0.0
    ) -> Record:
        """What a server reads from the mean of what some sites answer, with noise on it."""
        training = self.settings.training
        rate = training.learning_rate if training.optimizer == optimizer else {"sgd": 1e-2, "adam": 1e-3}[optimizer]
        settings = self.settings.with_values(
            "training", optimizer=optimizer, learning_rate=rate, batch_size=self.sizes.batch, local_epochs=1
        )
        answers = [self._train(site, count, sent, settings) for site, count in counts.items()]
        after = {
            key: torch.stack([state[key] for state, _ in answers]).double().mean(dim=0).to(sent[key]) for key in sent
        }
        steps = answers[0][1]
        decay = decay_of(settings.training, steps)
        trained = torch.cat([self.trap.pieces(self.images[site].images[:count]) for site, count in counts.items()])
        others = torch.cat([self.others[site] for site in counts])
        received = self._add_noise(sent, after, noise) if noise else after
        pieces = read_pieces(sent, received, self.trap, self.public, steps, decay)
        return {"case": name, "sites": len(counts), "steps": steps, **count_read(pieces, trained, others)}

    def _train(self, site: str, count: int, state: State, settings: Settings) -> tuple[State, int]:
        """A round of the site's own training, the real one, on some of its images."""
        train = self.images[site].at(torch.arange(count))
        with tempfile.TemporaryDirectory() as folder:
            client = Client(
                site=Site(site, train, {site: train}, {site: train}, {site: train}),
                task=self.task,
                method=self.method,
                settings=settings,
                model=self.model,
                store=Store(Path(folder) / "store"),
                model_folder=Path(folder) / "model",
            )
            reply = client.answer(Request("0" * 32, "train", 1, state=state))
        if reply.error:
            raise UsageError(f"crafted weights: {reply.error}")
        return dict(reply.state), reply.num_steps

    def _add_noise(self, sent: State, after: State, noise: float) -> State:
        """Weights as they leave a site with differential privacy: clipped to their own length, that is not at all."""
        generator = Generator().manual_seed(seed_of(self.seed, "noise", noise))
        squares = [float((after[name] - sent[name]).double().square().sum()) for name in self.trainable]
        deviation = noise * math.sqrt(sum(squares))
        return after | {
            name: after[name] + deviation * torch.randn(after[name].shape, generator=generator)
            for name in self.trainable
        }


def _success(record: Record) -> tuple[int, float]:
    return record["read"], record["psnr"] or 0.0
