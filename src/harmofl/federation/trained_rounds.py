"""The results of sites' training rounds, for another run with the same training that uses its models differently.

Two runs that differ in `model.statistics` alone train to the same bits. The second one finds here what each site's
round gave the first, and only scores. What a round starts from is part of its name: nothing else is ever taken.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save

from harmofl.data.cache import digest
from harmofl.data.facts import DataFacts
from harmofl.federation.messages import Reply, Request
from harmofl.methods.method import Method
from harmofl.methods.pieces import Piece
from harmofl.runs.store import CorruptVersionError, Store
from harmofl.settings import Settings, flatten
from harmofl.settings.schema import FREE_TO_CHANGE
from harmofl.states import State, add_prefix, select_prefix
from harmofl.version import __version__

logger = logging.getLogger(__name__)

NOT_OF_TRAINING = ("model.statistics", *FREE_TO_CHANGE)
"""Settings that change nothing of what is trained."""
HOOKS = ("sends", "measure", "receive", "start", "finish")


def training_key(settings: Settings) -> str:
    """A name that runs share if they train the same, however their models are used."""
    values = flatten(settings.model_dump(mode="json"))
    return digest({name: value for name, value in values.items() if name not in NOT_OF_TRAINING})


@dataclass(frozen=True)
class Trained:
    """What a round of training gave: the reply, and what the site keeps."""

    reply: Reply
    kept: State


class TrainedRounds:
    """A folder of one site's rounds of training."""

    def __init__(self, folder: Path, site: str, settings: Settings, method: Method, facts: DataFacts | None) -> None:
        self._store = Store(folder / site)
        self._site = site
        plugins = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in settings.plugins.files]
        code = [__version__, torch.__version__, plugins, "" if is_passive(method.adapt) else repr(method.adapt)]
        self._same = digest(training_key(settings), facts.to_json() if facts else None, code)

    def find(self, number: int, start: str) -> Trained | None:
        """What a round gave before, if it had the same start."""
        if number not in self._store.versions():
            return None
        try:
            tensors, notes = self._store.load(number)
        except CorruptVersionError as error:
            logger.warning("training again: %s", error)
            return None
        if notes["start"] != start:
            return None
        reply = Reply(self._site, select_prefix("state", tensors), select_prefix("sent", tensors), **notes["reply"])
        return Trained(reply, select_prefix("kept", tensors))

    def keep(self, number: int, start: str, trained: Trained) -> None:
        """Keep what a round gave."""
        reply = trained.reply
        plain = {"num_examples": reply.num_examples, "num_steps": reply.num_steps, "metrics": dict(reply.metrics)}
        tensors = add_prefix("state", reply.state) | add_prefix("sent", reply.sent) | add_prefix("kept", trained.kept)
        try:
            self._store.save(number, tensors, {"start": start, "reply": plain})
        except OSError as error:  # nothing is lost but time
            logger.warning("what round %d gave cannot be kept for another run: %s", number, error)

    def start_of(self, request: Request, kept: State) -> str:
        """A name for all that a round's outcome depends on; asked before training, which changes `kept` in place."""
        parts = (request.state, request.combined, kept)
        return digest(self._same, request.round, [hashlib.sha256(save(dict(part))).hexdigest() for part in parts])


def is_passive(piece: Piece) -> bool:
    """Whether a piece takes no part in training."""
    return all(getattr(type(piece), hook) is getattr(Piece, hook) for hook in HOOKS)
