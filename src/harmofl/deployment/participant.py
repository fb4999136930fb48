"""A hospital's side of a federation: it answers messages, whatever engine brought them, and guards what is its own.

The server decides how to train. Where images, cache and models are, which device is used, and how many images a shared
spectrum needs, only the hospital decides. The details of what went wrong here stay in its own log.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from harmofl import registry
from harmofl.deployment.approvals import Approvals
from harmofl.deployment.audit import audit_log, write_entry
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.logs import name_cause
from harmofl.deployment.memory import MEGABYTE, memory_of, refuse_what_cannot_fit
from harmofl.deployment.own_images import OwnImages, describe_images
from harmofl.deployment.own_survey import answer_survey
from harmofl.deployment.policy import (
    apply_own_choices,
    check_plain_fields,
    describe_view,
    refuse_few_images,
    refuse_paths,
    refuse_thin_averages,
    refuse_too_much,
    refuse_windows,
    remember,
    require_secure_aggregation,
)
from harmofl.deployment.run_protocol import RunProtocol, rounded, weights_of
from harmofl.deployment.run_settings import digest_of, run_digest
from harmofl.devices import threads
from harmofl.errors import RefusalError, UsageError
from harmofl.federation.checks import mismatch, to_plain_text
from harmofl.federation.client import Client
from harmofl.federation.failures import TrainingDivergedError
from harmofl.federation.messages import MASKED, Reply, Request, decode_request, encode
from harmofl.methods.channel import announce, expect_combined
from harmofl.methods.method import Method
from harmofl.runs.store import Store
from harmofl.settings import Settings, resolve
from harmofl.states import State, snapshot

logger = logging.getLogger(__name__)

SPECTRA = "spectra.json"
BEFORE_A_RUN = ("describe", "survey")
OTHER_SETTINGS = "the settings of this run have changed since its first request"
OTHER_IMAGES = "its images or their split have changed since this run started"
OTHER_ANNOTATIONS = "its masks or labels have changed since this run started"
OTHER_SPECTRUM = (
    "a spectrum of other images has been shared before, or of the same ones seen otherwise: the difference could give "
    "one of them away "
    f"(the hospital allows it by deleting {SPECTRA} in its state folder)"
)


class Participant:
    """Answers for one site, run after run; images stay loaded between the rounds of a run."""

    def __init__(self, kit: SiteKit) -> None:
        self.kit = kit
        self._consortium = kit.consortium  # an error now, if it cannot be read
        self._asked: Settings | None = None
        self._digest = ""
        """Of the settings of the last request, as they are approved."""
        self._run = ""
        self._fingerprint = ""
        self._initial: State = {}
        self._sized: deque[str] = deque(maxlen=100)
        """Settings whose network and batches are small enough."""
        self._client: Client | None = None

    def answer(self, data: bytes) -> bytes:
        """Turn an encoded request into an encoded reply; whatever happens, there is one, and an entry in the log."""
        self._digest = ""
        began = time.monotonic()
        request, reply, outcome = self._reply(data)
        encoded = encode(reply)
        try:
            self._audit(request, outcome, len(data), len(encoded), time.monotonic() - began)
        except OSError as error:  # what is not written down does not leave
            reason = f"its audit log cannot be written; {self._report(error)}"
            return encode(Reply(self.kit.name, error=reason))
        return encoded

    def _reply(self, data: bytes) -> tuple[Request | None, Reply, str]:
        request = None
        try:
            request = self._decode(data)
            reply = self._answer_request(request)
        except RefusalError as error:
            reason = to_plain_text(str(error))
            logger.warning("%s: a request was refused: %s", self.kit.name, reason)
            return request, Reply(self.kit.name, error=reason), f"refused: {reason}"
        except Exception as error:
            told = self._report(error)
            return request, Reply(self.kit.name, error=told), f"failed: {told}"
        outcome = reply.error or "done"
        logger.info(
            "%s: run %s, round %d, %s: %s", self.kit.name, request.run[:8], request.round, request.kind, outcome
        )
        return request, reply, f"failed: {reply.error}" if reply.error else "done"

    def _audit(self, request: Request | None, outcome: str, received: int, sent: int, seconds: float) -> None:
        about: dict[str, Any] = {}
        if request is not None:
            settings = self._digest or digest_of(request.settings)  # the latter of what are no settings
            about = {"run": request.run, "settings": settings, "asked": request.kind, "round": request.round}
        write_entry(
            audit_log(self.kit.folder),
            who=self.kit.federation.server,
            **about,
            outcome=outcome,
            received=received,
            sent=sent,
            seconds=round(seconds, 3),
        )

    def _report(self, error: Exception) -> str:
        """Log an error in full at this site, its cause first; return what the server may know of it."""
        logger.error("%s: a request was not answered: %s", self.kit.name, name_cause(error), exc_info=error)
        return to_plain_text(summarize_error(error))

    def _decode(self, data: bytes) -> Request:
        largest = self.kit.settings.largest_message_mb
        if len(data) > largest * MEGABYTE:
            raise RefusalError(f"a message of {len(data) / MEGABYTE:.0f} MB: at most {largest} are accepted")
        try:
            request = decode_request(data)
        except ValueError as error:
            raise RefusalError(str(error)) from None
        check_plain_fields(request)
        return request

    def _answer_request(self, request: Request) -> Reply:
        settings, method = self._accept(request)
        with threads(settings.federation.threads):
            if request.kind == "describe":
                return Reply(self.kit.name, description=describe_images(self.kit, settings))
            if request.kind == "survey":
                return Reply(self.kit.name, description=answer_survey(self.kit, settings))
            client = self._client_for(request.run, settings, method)
            revealing = [piece for piece in client.pieces.values() if piece.could_reveal_images(client.model)]
            if revealing:
                refuse_thin_averages(revealing)
                refuse_windows(settings, self.kit)
            announced = announce(client.pieces, client.model)
            expected = expect_combined(client.pieces, announced, request.combined)
            problem = mismatch(request.state, snapshot(client.model.network), all_of_it=False)
            if problem := problem or mismatch(request.combined, expected):
                raise RefusalError(f"the received model does not fit: {problem}")
            if self.protects:
                self._protocol(request.run, client).check(request)
            reply = client.answer(request)
            if self.protects:
                reply = rounded(reply, self.kit.settings.policy.score_digits)
            if (reply.sent or MASKED in reply.state) and revealing:  # it has not left yet
                images = f"{self._fingerprint}, {len(client.site.train)} images"
                remember(self.kit.state(SPECTRA), f"{images}, {describe_view(settings)}", OTHER_SPECTRUM)
            return reply

    def _accept(self, request: Request) -> tuple[Settings, Method]:
        """Return the server's settings, if this hospital accepts them, with the hospital's own choices filled in."""
        refuse_paths(request.settings)
        try:
            settings, method = resolve(file=dict(request.settings))
        except (UsageError, TypeError, ValueError, AttributeError) as error:
            raise RefusalError(f"the settings are not accepted: {error}") from None
        own = self.kit.settings
        self._digest = Approvals(self.kit).digest(settings)
        if settings.task not in own.tasks:
            raise RefusalError(f"task {settings.task!r} is not accepted here ({', '.join(own.tasks)} would be)")
        if method.pooled:
            raise RefusalError(f"{method.name} would need all hospitals' images in one place")
        if request.kind != "survey":
            require_secure_aggregation(settings, own.policy)
        refuse_too_much(settings)
        if (digest := run_digest(settings)) not in self._sized:
            memory = own.largest_memory_mb * MEGABYTE if own.largest_memory_mb else memory_of(own.device)
            refuse_what_cannot_fit(settings, method, own.largest_message_mb * MEGABYTE, memory)
            self._sized.append(digest)
        if self.protects:
            run = None if request.kind in BEFORE_A_RUN else request.run
            self._digest = Approvals(self.kit).admit(run, settings, method)
            if run is not None:
                remember(self.kit.state(run) / "settings.json", digest, OTHER_SETTINGS)
        return apply_own_choices(settings, self.kit), method

    @property
    def protects(self) -> bool:
        """Whether there is something to protect here: synthetic images are everybody's."""
        return self.kit.data is not None

    def _protocol(self, run: str, client: Client) -> RunProtocol:
        settings, policy = client.settings, self.kit.settings.policy
        return RunProtocol(
            self.kit.state(run),
            policy,
            settings.training.rounds,
            self._initial,
            private=settings.privacy.is_on,
            drawn=settings.federation.participation < 1,
        )

    def _client_for(self, run: str, settings: Settings, method: Method) -> Client:
        if self._client is None or (run, settings) != (self._run, self._asked):
            self._client = None  # frees its images before others are loaded
            self._client = self._make_client(run, settings, method)
            self._run, self._asked = run, settings
        return self._client

    def _make_client(self, run: str, settings: Settings, method: Method) -> Client:
        task, state = registry.tasks.find(settings.task), self.kit.state(run)
        images = OwnImages.of(self.kit, settings)
        remember(state / "images.json", images.fingerprint, OTHER_IMAGES)
        remember(state / "annotations.json", images.annotations, OTHER_ANNOTATIONS)
        self._fingerprint = images.fingerprint
        if self.protects:
            refuse_few_images(images, self.kit.settings.policy)
        model = task.build_model(images.settings, method)
        self._initial = weights_of(snapshot(model.network), {name for name, _ in model.network.named_parameters()})
        return Client(
            site=images.site,
            task=task,
            method=method,
            settings=images.settings,
            model=model,
            store=Store(state),
            model_folder=self.kit.model(run),
            describe_error=self._report,
            keeps_model=True,
            facts=images.facts,
            consortium=self._consortium,
        )


def summarize_error(error: Exception) -> str:
    """What the server may know: reasons written for it; of any other error, which may name files, only the kind."""
    if isinstance(error, (RefusalError, TrainingDivergedError)):
        return str(error)
    if isinstance(error, UsageError):
        return "its images cannot be used; `harmofl deploy check` there says why"
    return f"{type(error).__name__}; its own log says more"
