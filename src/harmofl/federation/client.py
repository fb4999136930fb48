"""What a site does: measure, train, evaluate. The only local training loop of all methods and engines."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from harmofl.data.images import ImageSet, Site, seed_of
from harmofl.devices import CHANNELS_LAST, choose_device, keep_freed_memory
from harmofl.errors import UsageError
from harmofl.federation.inputs import TrainingInputs
from harmofl.federation.messages import Reply, Request
from harmofl.federation.optimizers import build_optimizer, optimizer_tensors, restore_optimizer
from harmofl.methods.method import Method
from harmofl.methods.penalties import Batch, Reference, Represent, Term, squared_distance
from harmofl.models.network import Model, Network
from harmofl.runs.model_folder import write_model
from harmofl.runs.store import Store
from harmofl.settings import Settings
from harmofl.states import State, evaluating, load, prefixed, snapshot, unprefixed
from harmofl.tasks.scorers import Scores
from harmofl.tasks.scoring import score
from harmofl.tasks.task import Task

logger = logging.getLogger(__name__)

Tell = Callable[[Exception], str]
"""From what went wrong at a site to what the server hears of it."""


class TrainingDivergedError(Exception):
    """A round that ended in NaN or infinity."""


class RefusalError(UsageError):
    """What a site will not do; the reason names nothing of its own."""


def in_full(error: Exception) -> str:
    """All about an error, for a server on the same machine."""
    kind = "" if isinstance(error, (TrainingDivergedError, UsageError)) else f"{type(error).__name__}: "
    return f"{kind}{error}"


class Client:
    """Answers the server's requests for one site.

    Between requests everything it keeps lies in its store; the model is a workspace that sites of one process share.
    """

    def __init__(
        self,
        site: Site,
        task: Task,
        method: Method,
        settings: Settings,
        model: Model,
        store: Store,
        model_folder: Path,
        tell: Tell = in_full,
        keeps_model: bool = False,
    ) -> None:
        """`keeps_model`: write the selected model at the site, also where the server has all of it."""
        self.site = site
        self.task = task
        self.method = method
        self.settings = settings
        self.model = model
        self.store = store
        self.model_folder = model_folder
        self.tell = tell
        self.device = choose_device(settings.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.shared = method.shares(model.network)
        self.keeps_model = keeps_model or keeps_a_part(model, self.shared)
        self._inputs = TrainingInputs(site.train, settings.training, self.device)
        self._blank_harmonizer = snapshot(method.harmonizer(task.image_shape(settings.data)))

    def answer(self, request: Request) -> Reply:
        """Do what is asked; whatever goes wrong here becomes the reply's error, and the round goes on elsewhere."""
        handle = {"amplitude": self._measure, "train": self._train, "evaluate": self._evaluate}[request.kind]
        try:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(seed_of(self.settings.seed, request.round, self.site.name))
                return handle(request)
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> Reply:
        logger.debug("site %s failed", self.site.name, exc_info=error)
        return Reply(self.site.name, error=self.tell(error))

    def _measure(self, request: Request) -> Reply:
        self._refuse_to_reveal()
        harmonizer = self.model.to(self.device).harmonizer  # the network plays no part here
        load(harmonizer, self._blank_harmonizer)
        batches = self.site.train.batches(self.settings.training.batch_size)
        harmonizer.measure(batch.images.to(self.device) for batch in batches)
        if harmonizer.own:
            self.store.save(request.round, prefixed("harmonizer", snapshot(harmonizer, sorted(harmonizer.own))))
        return Reply(self.site.name, measurement=harmonizer.measurement(), num_examples=len(self.site.train))

    def _evaluate(self, request: Request) -> Reply:
        self._receive(request, version=request.round)
        self.model.harmonizer.freeze()
        if request.thorough and self.keeps_model:
            write_model(self.model_folder, self.model, self.task, self.settings, [self.site.name], request.round)
        return Reply(self.site.name, metrics=self._scores(request.thorough), num_examples=len(self.site.train))

    def _train(self, request: Request) -> Reply:
        kept = self._receive(request, version=request.round - 1)
        scores = self._scores() if request.score else {}
        try:
            reply = self._trained(request, kept)
        except Exception as error:  # the scores of the model that was received still count
            return replace(self._failed(error), metrics=scores)
        return replace(reply, metrics={**reply.metrics, **scores})

    def _trained(self, request: Request, kept: State) -> Reply:
        learns_amplitude = self._prepare_harmonizer(request)
        if learns_amplitude:
            self._refuse_to_reveal()
        optimizer = build_optimizer(self.model.network, self.settings.training, request.round)
        restore_optimizer(optimizer, unprefixed("optimizer", kept))

        started = time.perf_counter()
        generator = Generator().manual_seed(seed_of(self.settings.seed, request.round, self.site.name, "order"))
        batches = self._inputs.batches(self.model.harmonizer, learns_amplitude, generator)
        summary, num_steps = self._descend(batches, optimizer, previous=unprefixed("previous", kept))
        seconds = time.perf_counter() - started

        if not all_finite(self.model.network, summary):
            # Raised before anything is kept, so that the next round starts from the last good one.
            raise TrainingDivergedError("training gave NaN or infinite numbers")
        self._keep(request, optimizer)
        return Reply(
            site=self.site.name,
            state=snapshot(self.model.network, self.shared),
            measurement=self.model.harmonizer.measurement() if learns_amplitude else {},
            num_examples=len(self.site.train),
            num_steps=num_steps,
            metrics={"train": summary | {"seconds": seconds}},
        )

    def _descend(
        self, batches: Iterator[tuple[Tensor, Tensor]], optimizer: Optimizer, previous: State
    ) -> tuple[Scores, int]:
        """Train on every batch; return the mean loss, the drift Γ = (1/K) Σ ‖θ_k − θ‖², and the number of steps K."""
        network, loss = self.model.network, self.task.loss(self.settings)
        weights = list(network.parameters())
        start = [weight.detach().clone() for weight in weights]
        terms = self._penalty_terms(start, previous)
        total_loss = torch.zeros((), device=self.device)
        total_drift = torch.zeros((), device=self.device)
        num_steps, num_images = 0, 0

        self.model.train()
        for inputs, targets in batches:  # harmonized already: once a step, even if the step makes two passes

            def compute_loss(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                if not terms:
                    return loss(network(inputs), targets)
                logits, representation = network.represent(inputs)
                batch = Batch(weights, inputs, representation)
                return torch.stack([loss(logits, targets), *(term(batch) for term in terms)]).sum()

            total_loss += self.method.step(network, optimizer, compute_loss) * len(inputs)
            with torch.no_grad():
                total_drift += squared_distance(weights, start)
            num_steps += 1
            num_images += len(inputs)
        return {"loss": float(total_loss) / num_images, "drift": float(total_drift) / num_steps}, num_steps

    def _penalty_terms(self, start: Sequence[Tensor], previous: State) -> list[Term]:
        network = self.model.network
        reference = Reference(
            weights=start,
            global_model=lambda: frozen_representation(network, None),
            previous_model=lambda: frozen_representation(network, previous or None),
        )
        terms = (penalty.start(reference) for penalty in self.method.penalties)
        return [term for term in terms if term is not None]

    def _receive(self, request: Request, version: int) -> State:
        """Put the received entries and the site's own into the model; return all that the site kept."""
        kept = self.store.newest(at_most=version)
        own = unprefixed("own", kept)
        received = {name: tensor for name, tensor in request.state.items() if name not in own}
        self.model.to(self.device, memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
        load(self.model.network, received, own)
        load(self.model.harmonizer, self._blank_harmonizer | unprefixed("harmonizer", kept))
        if request.measurement:
            self.model.harmonizer.receive(request.measurement)
        return kept

    def _refuse_to_reveal(self) -> None:
        """A spectrum averaged over very few images could give one of them away: the site keeps it."""
        fewest, own = self.settings.data.min_images_for_amplitude, len(self.site.train)
        if own < fewest and self.model.harmonizer.could_reveal_images():
            raise RefusalError(
                f"{own} training images: an amplitude of fewer than {fewest} could give an image away, so it is not "
                "shared (data.min_images_for_amplitude)"
            )

    def _prepare_harmonizer(self, request: Request) -> bool:
        """Freeze the harmonizer unless this is a round in which it learns."""
        schedule = self.method.harmonizer.schedule
        learns = schedule == "every-round" or (schedule == "first-round" and request.round == 1)
        if not learns:
            self.model.harmonizer.freeze()
        return learns

    def _keep(self, request: Request, optimizer: Optimizer) -> None:
        """Write the version of this round, and drop those that no round will start from again."""
        network, harmonizer = self.model.network, self.model.harmonizer
        own = [name for name in network.state_dict() if name not in set(self.shared)]
        kept = prefixed("own", snapshot(network, own))
        kept |= prefixed("harmonizer", snapshot(harmonizer, sorted(harmonizer.own)))
        if any(penalty.needs_previous_model for penalty in self.method.penalties):
            kept |= prefixed("previous", snapshot(network))
        if self.settings.training.optimizer_state == "keep":
            kept |= prefixed("optimizer", optimizer_tensors(optimizer))
        self.store.save(request.round, kept)
        self.store.prune({*request.keep, request.round})

    def _scores(self, thorough: bool = False) -> dict[str, dict[str, Scores]]:
        parts = {"test": self.site.test} if thorough else {"val": self.site.val, "test": self.site.test}
        with evaluating(self.model):
            return {phase: self._score_each(images, thorough) for phase, images in parts.items()}

    def _score_each(self, sites: Mapping[str, ImageSet], thorough: bool) -> dict[str, Scores]:
        return {name: score(self.model, self.task, self.settings, images, thorough) for name, images in sites.items()}


def keeps_a_part(model: Model, shared: Sequence[str]) -> bool:
    """Whether sites have something of their own, so that there is one model per site."""
    return len(shared) < len(model.network.state_dict()) or bool(model.harmonizer.own)


def all_finite(network: Network, numbers: Scores) -> bool:
    """Whether a round of training left nothing but finite numbers."""
    state = network.state_dict().values()
    return all(map(math.isfinite, numbers.values())) and all(bool(tensor.isfinite().all()) for tensor in state)


def frozen_representation(network: Network, state: State | None) -> Represent:
    """The representation that a copy of the network gives, with other weights if there are any."""
    twin = copy.deepcopy(network).eval()
    if state:
        load(twin, state)
    return torch.no_grad()(twin.representation)
