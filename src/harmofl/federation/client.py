"""What a site does: measure, train, evaluate. The only local training loop of all methods and engines."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from harmofl.data.facts import DataFacts
from harmofl.data.images import ImageSet, LabelledImages, Site, seed_of
from harmofl.data.volumes import count_whole
from harmofl.devices import choose_device, keep_freed_memory, move_model, to_device
from harmofl.displays.profiling import each, part
from harmofl.errors import RefusalError
from harmofl.federation.bounds import all_finite
from harmofl.federation.failures import Tell, TrainingDivergedError, describe_fully
from harmofl.federation.filters.chain import Filters
from harmofl.federation.inputs import TrainingInputs
from harmofl.federation.local_loss import LocalLoss
from harmofl.federation.messages import Reply, Request
from harmofl.federation.noise import open_noise
from harmofl.federation.numerics import Numerics
from harmofl.federation.optimizers import build_optimizer, learning_rate, optimizer_tensors, restore_optimizer
from harmofl.federation.privacy import spent_on_images
from harmofl.federation.private_measurements import hide, noise_for_images, senders
from harmofl.federation.private_steps import PrivateRound, private_round
from harmofl.federation.sampling import take_sample
from harmofl.federation.secure.choice import choose_replies
from harmofl.federation.trained_rounds import Trained, TrainedRounds
from harmofl.methods.channel import collect_kept, collect_sent, open_memories
from harmofl.methods.method import OWN, STEP, Method
from harmofl.methods.model import Model
from harmofl.methods.penalties import squared_distance
from harmofl.methods.pieces import LocalRound, Memory
from harmofl.methods.steps import Step
from harmofl.runs.live_samples import LiveSamples
from harmofl.runs.model_folder import write_model
from harmofl.runs.store import Store
from harmofl.settings import Settings
from harmofl.states import State, add_prefix, evaluating, load, restoring, select_prefix, snapshot
from harmofl.tasks.scorers import Scores
from harmofl.tasks.scoring import Look, UndefinedScoreError, score
from harmofl.tasks.task import Task

logger = logging.getLogger(__name__)


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
        tell: Tell = describe_fully,
        keeps_model: bool = False,
        facts: DataFacts | None = None,
        trained: TrainedRounds | None = None,
        samples: LiveSamples | None = None,
        simulated: bool = False,
        consortium: bytes = b"",
    ) -> None:
        """`keeps_model`: write the selected model at the site, also where the server has all of it.

        `facts`: of the images, for the description of a model that is written here. `trained`: rounds of training that
        need not be repeated. `samples`: where to leave an image for whoever watches the run. `simulated`: whether there
        is nobody to keep a secret from, so that all chance may come from the run's seed. `consortium`: a key that all
        sites have and the server has not, for secure aggregation.
        """
        self.site = site
        self.task = task
        self.method = method
        self.settings = settings
        self.facts = facts
        self.trained = trained
        self.samples = samples
        self.model = model
        self.store = store
        self.model_folder = model_folder
        self.tell = tell
        self.device = choose_device(settings.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.shared = method.shares(model.network)
        self.pieces = method.pieces()
        self.sending = senders(method, model)
        self.filters = Filters.chosen(settings, method, model)
        self.secure = choose_replies(site.name, len(site.train), method, model, settings, store.folder, consortium)
        self.secret_seed = settings.seed if simulated else None
        self.keeps_model = keeps_model or sites_differ(method, model)
        joined = len(site.train_of) if settings.training.pooled_batch == "all-sites" else 1
        private = settings.privacy.image_level
        self._inputs = TrainingInputs(site.train, settings.training, self.device, joined, independent=private)
        self._numerics = Numerics(model.network, settings.training, self.device)
        self._blank_harmonizer = snapshot(method.harmonizer(task.image_shape(settings.data)))

    def answer(self, request: Request) -> Reply:
        """Do what is asked; whatever goes wrong here becomes the reply's error, and the round goes on elsewhere."""
        handlers = {"measure": self._measure, "train": self._train, "evaluate": self._evaluate}
        handle = handlers.get(request.kind, self.secure.answer)
        try:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(seed_of(self.settings.seed, request.round, self.site.name))
                return handle(request)
        except Exception as error:
            return self._report(error)

    def _report(self, error: Exception) -> Reply:
        logger.debug("site %s failed", self.site.name, exc_info=error)
        return Reply(self.site.name, error=self.tell(error))

    def _measure(self, request: Request) -> Reply:
        self.model.to(self.device)
        load(self.model.harmonizer, self._blank_harmonizer)
        memories = open_memories(self.pieces, {}, {})
        for name, piece in self.pieces.items():
            if piece.measures_first:
                batches = self.site.train.batches(self.settings.training.batch_size)
                piece.measure(self.model, map(self._measured_images, batches), memories[name])
        self._refuse_to_reveal(memories)
        if kept := collect_kept(memories):
            self.store.save(request.round, kept)
        sent = self._hide_images(request, collect_sent(memories))
        reply = Reply(self.site.name, sent=sent, num_examples=len(self.site.train))
        reply, _ = self.filters.leave(reply, request, {}, self.secret_seed, self.store.folder)
        return self.secure.mask(request, reply, Filters())

    def _measured_images(self, batch: LabelledImages) -> Tensor:
        """The images of a batch; where each is to be private, within the range from which pieces' bounds follow."""
        images = batch.images.to(self.device)
        return images.clamp(0, 1) if self.settings.privacy.image_level else images

    def _hide_images(self, request: Request, sent: State) -> State:
        """What was measured, with noise that hides every single image, where images are to be private."""
        if not self.settings.privacy.image_level:
            return sent
        noise = open_noise(self.secret_seed, self.store.folder, self.site.name, request, "image")
        noised = noise_for_images(self.settings.privacy, self.sending, self.model, len(self.site.train))
        return hide(sent, noised, noise)

    def _evaluate(self, request: Request) -> Reply:
        _, memories = self._receive(request, newest=request.round)
        self.model.harmonizer.freeze()  # a model that is used learns no more
        with self._in_use(memories):
            scores = self._test(request.round) if request.thorough else self._scores(request.round)
        return Reply(self.site.name, metrics=scores, num_examples=len(self.site.train))

    def _train(self, request: Request) -> Reply:
        kept, memories = self._receive(request, newest=request.round - 1)
        with self._in_use(memories):
            scores = self._scores(request.round - 1) if request.score else {}
        try:
            trained = self._train_once(request, kept, memories)
            reply, kept_by_filters = self.filters.leave(
                trained.reply, request, kept, self.secret_seed, self.store.folder
            )
            reply = self.secure.mask(request, reply, self.filters)
            self._keep(request, trained.kept | kept_by_filters)
        except Exception as error:  # the scores of the model that was received still count
            return replace(self._report(error), metrics=scores)
        return replace(reply, metrics={**reply.metrics, **scores})

    def _train_once(self, request: Request, kept: State, memories: Mapping[str, Memory]) -> Trained:
        """Train, unless another run has done the very same before."""
        optimizer_state = select_prefix("optimizer", kept)
        if self.trained is None:
            return self._train_from(request, optimizer_state, memories)
        start = self.trained.start_of(request, kept)
        trained = self.trained.find(request.round, start)
        if trained is None:
            trained = self._train_from(request, optimizer_state, memories)
            self.trained.keep(request.round, start, trained)
        return trained

    def _train_from(self, request: Request, optimizer_state: State, memories: Mapping[str, Memory]) -> Trained:
        optimizer = build_optimizer(self.model.network, self.settings.training, request.round)
        restore_optimizer(optimizer, optimizer_state)
        views = self._start_round(request.round, memories)

        started = time.perf_counter()
        noise = partial(open_noise, self.secret_seed, self.store.folder, self.site.name, request, "image")
        with private_round(self.settings, self.model.network, noise) as private:
            summary, num_steps = self._descend(request.round, optimizer, views, private)
        seconds = time.perf_counter() - started

        if not (all(map(math.isfinite, summary.values())) and all_finite(self.model.network.state_dict())):
            # Raised before anything is kept, so that the next round starts from the last good one.
            raise TrainingDivergedError("training gave NaN or infinite numbers")
        for name, piece in self.pieces.items():
            piece.finish(replace(views[name], num_steps=num_steps))
        self._refuse_to_reveal(memories)
        summary |= spent_on_images(self.settings, self.sending, len(self.site.train), request.round * num_steps)
        reply = Reply(
            site=self.site.name,
            state=snapshot(self.model.network, self.shared),
            sent=collect_sent(memories),
            num_examples=len(self.site.train),
            num_steps=num_steps,
            metrics={"train": summary | {"seconds": seconds}},
        )
        kept = collect_kept(memories)
        if self.settings.training.optimizer_state == "keep":
            kept |= add_prefix("optimizer", optimizer_tensors(optimizer))
        return Trained(reply, kept)

    def _start_round(self, number: int, memories: Mapping[str, Memory]) -> dict[str, LocalRound]:
        """The round as each piece sees it: all the same but for its memory."""
        weights = [weight.detach().clone() for weight in self.model.network.parameters()]
        rate = learning_rate(self.settings.training, number)
        rounds = self.settings.training.rounds
        return {
            name: LocalRound(number, self.model, weights, rate, memory, num_rounds=rounds)
            for name, memory in memories.items()
        }

    def _descend(
        self, round_number: int, optimizer: Optimizer, views: Mapping[str, LocalRound], private: PrivateRound | None
    ) -> tuple[Scores, int]:
        """Train on every batch; return the mean loss, the drift Γ = (1/K) Σ ‖θ_k − θ‖², and the number of steps K."""
        network = self.model.network
        weights, start = list(network.parameters()), views[OWN].initial_weights
        step, loss = self._start_pieces(views)
        generator = Generator().manual_seed(seed_of(self.settings.seed, round_number, self.site.name, "order"))
        if private:
            step, generator = private.step, private.generator
        total_loss = torch.zeros((), device=self.device)
        total_drift = torch.zeros((), device=self.device)
        num_steps, num_images = 0, 0

        self.model.train()
        # Harmonized already: once a step, even if the step makes two passes.
        for inputs, targets in each("input", self._inputs.batches(self.model.harmonizer, generator)):
            total_loss += step(network, optimizer, loss.of(inputs, targets)) * len(inputs)
            with torch.no_grad():
                total_drift += squared_distance(weights, start)
            num_steps += 1
            num_images += len(inputs)
        return {"loss": float(total_loss) / max(1, num_images), "drift": float(total_drift) / num_steps}, num_steps

    def _start_pieces(self, views: Mapping[str, LocalRound]) -> tuple[Step, LocalLoss]:
        """Start every piece; return the step of this round and the loss that it lowers."""
        started = {name: piece.start(views[name]) for name, piece in self.pieces.items()}
        pieces = ((piece, started[name]) for name, piece in self.pieces.items())
        loss = LocalLoss.started(self.model.network, self._numerics, self.task.loss(self.settings), pieces)
        return started.get(STEP, self.method.step), loss

    def _receive(self, request: Request, newest: int) -> tuple[State, dict[str, Memory]]:
        """Put the received entries and the site's own into the model; return what the site kept, for its pieces too."""
        if request.counted and request.counted not in self.store.versions():
            raise RefusalError(f"what it kept after round {request.counted} is gone: put it back, or start another run")
        kept = self.store.newest(at_most=newest if request.counted is None else request.counted)
        memories = open_memories(self.pieces, kept, request.combined)
        own = memories[OWN].kept
        received = {name: tensor for name, tensor in request.state.items() if name not in own}
        move_model(self.model, self.device)
        load(self.model.network, received, own)
        load(self.model.harmonizer, self._blank_harmonizer)
        for name, piece in self.pieces.items():
            piece.receive(self.model, memories[name])
        return kept, memories

    def _refuse_to_reveal(self, memories: Mapping[str, Memory]) -> None:
        """What was computed from very few images could give one of them away: the site keeps it."""
        fewest, own = self.settings.data.min_images_for_amplitude, count_whole(self.site.train)
        for name, piece in self.pieces.items():
            if own < fewest and memories[name].sent and piece.could_reveal_images(self.model):
                raise RefusalError(
                    f"{own} training images: an amplitude of fewer than {fewest} could give an image away, so it is "
                    "not shared (data.min_images_for_amplitude)"
                )

    def _keep(self, request: Request, kept: State) -> None:
        """Write the version of this round, and drop those that no round will start from again."""
        if request.counted is not None:
            self.store.remove_between(request.counted, request.round)
        with part("checkpoint"):
            self.store.save(request.round, kept)
            self.store.prune({*request.keep, request.round})

    def _scores(self, round_number: int) -> dict[str, dict[str, Scores]]:
        """Validation and test scores of the model of a round, by the site that the images come from."""
        scores: dict[str, dict[str, Scores]] = {"val": {}, "test": {}}
        for name in self.site.test:
            looks = {"val": self._look(name, round_number), "test": None}
            with self._adapt_to(name):
                for phase, images in (("val", self.site.val[name]), ("test", self.site.test[name])):
                    with suppress(UndefinedScoreError):  # the round has fewer scores then, and loses to one with more
                        scores[phase][name] = self._score(images, look=looks[phase])
        return scores

    def _test(self, round_number: int) -> dict[str, dict[str, Scores]]:
        """Test scores with every metric; the model is written as it is used, where sites have their own."""
        scores = {}
        for name, images in self.site.test.items():
            with self._adapt_to(name):
                if self.keeps_model and self.facts:
                    folder = self.model_folder if name == self.site.name else self.model_folder.with_name(name)
                    write_model(folder, self.model, self.task, self.settings, self.facts, [name], round_number)
                try:
                    scores[name] = self._score(images, thorough=True)
                except UndefinedScoreError as error:
                    raise RefusalError(str(error)) from None
        return {"test": scores}

    def _score(self, images: ImageSet, thorough: bool = False, look: Look | None = None) -> Scores:
        with evaluating(self.model), part("scoring"):
            return score(self.model, self.task, self.settings, images, thorough, look)

    def _look(self, name: str, round_number: int) -> Look | None:
        """What leaves one of the images that are scored for whoever watches the run, if it is to be left."""
        samples, classes = self.samples, self.task.classes_of(self.settings.data)
        if samples is None or self.settings.data.dimensions != 2:
            return None
        return lambda batch, logits: samples.write(take_sample(batch, logits, classes, name, round_number))

    @contextmanager
    def _in_use(self, memories: Mapping[str, Memory]) -> Iterator[None]:
        """For a block, the model as pieces would have this site use it; then as it was received again."""
        personal = [name for name, piece in self.pieces.items() if piece.personal]
        with restoring([*self.model.parameters(), *self.model.buffers()] if personal else []):
            for name in personal:
                self.pieces[name].use(self.model, memories[name])
            yield

    @contextmanager
    def _adapt_to(self, name: str) -> Iterator[None]:
        """For a block, the model as a site uses it on its own images; then as it was received again."""
        adaptation = self.method.adapt
        if not adaptation.at_every_site:
            yield
            return
        batches = self.site.train_of[name].batches(max(2, self.settings.training.batch_size))
        with restoring([*self.model.parameters(), *self.model.buffers()]):
            with part("scoring"):
                adaptation.adapt(self.model, (to_device(batch.images, self.device) for batch in batches))
            yield


def sites_differ(method: Method, model: Model) -> bool:
    """Whether every site ends with a model of its own: it keeps a part of it, or adapts it."""
    keeps_entries = len(method.shares(model.network)) < len(model.network.state_dict())
    return keeps_entries or bool(model.harmonizer.own) or method.adapt.at_every_site or method.is_personal
