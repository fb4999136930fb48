"""A hospital's side of a federation: it answers messages, whatever engine brought them, and guards what is its own.

The server says how to train; where images, cache and models lie, on what device, and what is too few images to share a
spectrum of, only the hospital says. What went wrong here in detail stays in its own log.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from harmofl import registry
from harmofl.data.images import Site
from harmofl.data.inspection import check_for_training
from harmofl.data.samples import POOLED
from harmofl.deployment.kits import SiteKit
from harmofl.devices import threads
from harmofl.errors import UsageError
from harmofl.federation.checks import in_plain_text, mismatch
from harmofl.federation.client import Client, RefusalError, TrainingDivergedError
from harmofl.federation.messages import Kind, Reply, Request, decode_request, encode
from harmofl.files import write_whole
from harmofl.methods.channel import announce, expect_combined
from harmofl.methods.method import Method
from harmofl.methods.pieces import Piece
from harmofl.runs.store import Store
from harmofl.settings import Settings, flatten, resolve
from harmofl.states import snapshot

logger = logging.getLogger(__name__)

RUN = re.compile(r"[0-9a-f]{32}")
PATHS = ("data.folder", "data.cache", "model.initial", "plugins.files")
MOST_ROUNDS = 10**6
MOST = {
    "federation.threads": 64,
    "training.local_epochs": 1000,
    "training.batch_size": 2**16,
    "data.images": 10**5,
}
"""Settings with which a server could keep this machine busy for ever, and the largest values that are accepted."""
MEGABYTE = 2**20
PIXELS = ("intensity", "color", "neighbours")
"""Data settings with which a server could have other spectra of the same images."""
SPECTRA = "spectra.json"
OTHER_IMAGES = "its images or their split have changed since this run began"
OTHER_ANNOTATIONS = "its masks or labels have changed since this run began"
OTHER_SPECTRUM = (
    "a spectrum of other images has been shared before, or of the same ones seen otherwise: the difference could give "
    "one of them away "
    f"(the hospital allows it by deleting {SPECTRA} in its state folder)"
)


class Participant:
    """Answers for one site, run after run; images stay loaded between the rounds of a run."""

    def __init__(self, kit: SiteKit) -> None:
        self.kit = kit
        self._asked: Settings | None = None
        self._run = ""
        self._fingerprint = ""
        self._client: Client | None = None

    def answer(self, data: bytes) -> bytes:
        """From an encoded request to an encoded reply; whatever happens, there is a reply."""
        return encode(self._reply(data))

    def _reply(self, data: bytes) -> Reply:
        try:
            request = self._request_in(data)
            reply = self._answered(request)
        except RefusalError as error:
            reason = in_plain_text(str(error))
            logger.warning("%s: a request was refused: %s", self.kit.name, reason)
            return Reply(self.kit.name, error=reason)
        except Exception as error:
            return Reply(self.kit.name, error=self._told(error))
        outcome = reply.error or "done"
        logger.info(
            "%s: run %s, round %d, %s: %s", self.kit.name, request.run[:8], request.round, request.kind, outcome
        )
        return reply

    def _told(self, error: Exception) -> str:
        """What the server hears of an error; all of it is for this site's own log, in which it stays."""
        logger.error("%s: a request was not answered", self.kit.name, exc_info=error)
        return in_brief(error)

    def _request_in(self, data: bytes) -> Request:
        largest = self.kit.settings.largest_message_mb
        if len(data) > largest * MEGABYTE:
            raise RefusalError(f"a message of {len(data) / MEGABYTE:.0f} MB: at most {largest} are accepted")
        try:
            request = decode_request(data)
        except ValueError as error:
            raise RefusalError(str(error)) from None
        check_plain_fields(request)
        return request

    def _answered(self, request: Request) -> Reply:
        settings, method = self._accepted(request.settings)
        with threads(settings.federation.threads):
            if request.kind == "describe":
                return Reply(self.kit.name, description=described(self.kit, settings))
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
            reply = client.answer(request)
            if reply.sent and revealing:  # it has not left yet
                images = f"{self._fingerprint}, {len(client.site.train)} images"
                remember(self.kit.state(SPECTRA), f"{images}, {seen_as(settings)}", OTHER_SPECTRUM)
            return reply

    def _accepted(self, wanted: Mapping[str, Any]) -> tuple[Settings, Method]:
        """The server's settings, if they are such as this hospital accepts, with what is its own put in."""
        refuse_paths(wanted)
        try:
            settings, method = resolve(file=dict(wanted))
        except (UsageError, TypeError, ValueError, AttributeError) as error:
            raise RefusalError(f"its settings are not accepted: {error}") from None
        own = self.kit.settings
        if settings.task not in own.tasks:
            raise RefusalError(f"task {settings.task!r} is not accepted here ({', '.join(own.tasks)} would be)")
        if method.pooled:
            raise RefusalError(f"{method.name} would need all hospitals' images in one place")
        refuse_too_much(settings)
        return with_own(settings, self.kit), method

    def _client_for(self, run: str, settings: Settings, method: Method) -> Client:
        if self._client is None or (run, settings) != (self._run, self._asked):
            self._client = None  # its images are let go before others are loaded
            self._client = self._made(run, settings, method)
            self._run, self._asked = run, settings
        return self._client

    def _made(self, run: str, settings: Settings, method: Method) -> Client:
        task, state = registry.tasks.find(settings.task), self.kit.state(run)
        images = OwnImages.of(self.kit, settings)
        remember(state / "images.json", images.fingerprint, OTHER_IMAGES)
        remember(state / "annotations.json", images.annotations, OTHER_ANNOTATIONS)
        self._fingerprint = images.fingerprint
        return Client(
            site=images.site,
            task=task,
            method=method,
            settings=images.settings,
            model=task.build_model(images.settings, method),
            store=Store(state),
            model_folder=self.kit.model(run),
            tell=self._told,
            keeps_model=True,
        )


def check_plain_fields(request: Request) -> None:
    """Refuse what no server of ours would send: a run's name is part of a path here."""
    if not (isinstance(request.run, str) and RUN.fullmatch(request.run)):
        raise RefusalError(f"run {request.run!r:.80}: not the name of a run")
    if request.kind not in get_args(Kind):
        raise RefusalError(f"request {request.kind!r:.80}: must be one of {', '.join(get_args(Kind))}")
    rounds = (request.round, *request.keep)
    if not all(type(number) is int and 0 <= number <= MOST_ROUNDS for number in rounds):
        raise RefusalError("its round is no number of a round")
    if not isinstance(request.settings, dict):
        raise RefusalError("its settings are no settings")


def refuse_paths(wanted: Mapping[str, Any]) -> None:
    """A request may not name a place on this machine."""
    values = flatten(wanted)
    for name in PATHS:
        if values.get(name):
            raise RefusalError(f"{name} names a path: where things lie here is not the server's to say")


def refuse_too_much(settings: Settings) -> None:
    """What no training needs."""
    values = flatten(settings.model_dump(mode="json"))
    for name, most in MOST.items():
        if values[name] > most:
            raise RefusalError(f"{name} = {values[name]}: at most {most} is accepted here")


def refuse_thin_averages(revealing: Iterable[Piece]) -> None:
    """A moving average can be the spectrum of its first or last image alone, however many images there are."""
    for piece in revealing:
        if not piece.measures_first:
            schedule = getattr(piece, "schedule", "unknown")
            raise RefusalError(f"method.schedule = {schedule!r}: of spectra only the mean of all images is shared here")


def refuse_windows(settings: Settings, kit: SiteKit) -> None:
    """A narrow window leaves all images blank but the brightest: the mean of their spectra would be that one's."""
    window = settings.data.intensity
    if isinstance(window, list) and window != kit.settings.intensity:
        hint = "the hospital allows one window of its choice by `intensity` in its site.toml"
        raise RefusalError(f"data.intensity = {window}: no spectrum is shared of images seen in this window ({hint})")


def seen_as(settings: Settings) -> str:
    """What the server's settings make of the pixels of an image."""
    return ", ".join(f"{name} {getattr(settings.data, name)}" for name in PIXELS)


def with_own(settings: Settings, kit: SiteKit) -> Settings:
    """The server's settings with what the hospital decides itself, which of the folder's sites it is among it."""
    own = kit.settings
    fewest = max(own.min_images_for_amplitude, settings.data.min_images_for_amplitude)
    folder = str(kit.data) if kit.data else None
    changed = settings.with_values(
        "data", folder=folder, cache=str(kit.cache), hold_out_site=None, min_images_for_amplitude=fewest
    )
    return changed.model_copy(update={"device": own.device})


def described(kit: SiteKit, settings: Settings) -> dict[str, Any]:
    """What the server must know of images that it never sees."""
    if kit.data is None:
        return {"synthetic": True}
    images = OwnImages.of(kit, settings)
    data = images.settings.data
    return {
        "synthetic": False,
        "channels": data.channels,
        "classes": data.classes,
        "num_train": len(images.site.train),
    }


@dataclass(frozen=True)
class OwnImages:
    """A hospital's images, under its name in the federation, and the settings that read them."""

    site: Site
    settings: Settings
    fingerprint: str
    annotations: str

    @classmethod
    def of(cls, kit: SiteKit, settings: Settings) -> OwnImages:
        """Open them; the folder may call the hospital by another name.

        That name, with what its images are recognized by, stands in the settings, and so in the hospital's copy of the
        model: by them `harmofl evaluate` knows which images it was trained on. Of other sites it knows the names only.
        """
        task, name = registry.tasks.find(settings.task), kit.name
        if kit.data is None:
            site = task.load_site(name, settings.with_values("data", sites=[name]).data)
            return cls(site, settings, "", "")
        everyone = settings.with_values("data", sites=None, fingerprints=None)
        called = called_there(kit, task.open_folder(everyone.data).sites)
        only = settings.with_values("data", sites=[called], fingerprints=None)
        folder = task.open_folder(only.data)
        check_for_training(folder)
        found = folder.found()
        train, val, test = folder.parts(called)
        known = {part: found[part] for part in ("channels", "classes") if getattr(settings.data, part) is None}
        others = [site for site in settings.data.sites or () if site not in (name, called)]
        (fingerprint,), (annotations,) = found["fingerprints"], found["annotations"]
        prints = [fingerprint, *("" for _ in others)]
        known |= {"sites": [called, *others], "fingerprints": prints, "annotations": None}
        site = Site(name, train, {name: val}, {name: test}, {name: train})
        return cls(site, settings.with_values("data", **known), fingerprint, annotations)


def called_there(kit: SiteKit, there: list[str]) -> str:
    """The hospital's name in its folder: as `site.toml` says, its own, or the only one there is."""
    wanted = kit.settings.site_in_data or (kit.name if kit.name in there else None)
    if wanted in there:
        return str(wanted)
    if wanted is None and len(there) == 1 and there[0] != POOLED:
        return there[0]
    raise UsageError(f"site_in_data = {wanted!r}: the folder holds {', '.join(there) or 'no site'}")


def remember(path: Path, fingerprint: str, otherwise: str) -> None:
    """Write down which images, or masks, something began with; refuse to go on with others."""
    if not path.exists():
        write_whole(path, json.dumps({"fingerprint": fingerprint}) + "\n")
    elif json.loads(path.read_text(encoding="utf-8")).get("fingerprint") != fingerprint:
        raise RefusalError(otherwise)


def in_brief(error: Exception) -> str:
    """What the server hears: reasons that were written for it; of anything else, as it may name files, the kind."""
    if isinstance(error, (RefusalError, TrainingDivergedError)):
        return str(error)
    if isinstance(error, UsageError):
        return "its images cannot be used; `harmofl deploy check` there says why"
    return f"{type(error).__name__}; its own log says more"
