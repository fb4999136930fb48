"""What a run's protocol calls for, as a hospital follows it: its rounds, few models to train and score, no leaps.

A server that may have any model scored as often as it likes can read images out of the scores. So a hospital scores as
many different models as the run has rounds, each near to the one before, and the first one must be the one that the
run's seed gives.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from harmofl.deployment.site_policy import Policy
from harmofl.documents import read_json
from harmofl.errors import RefusalError
from harmofl.federation.messages import EXCHANGES, Reply, Request
from harmofl.federation.moves import distance, tensor_distance
from harmofl.files import write_whole
from harmofl.runs.store import checksum
from harmofl.states import State, add_prefix

logger = logging.getLogger(__name__)

LAST_MODELS = 2
"""Models that are scored after the last round: the last one, and the selected one."""
TIMES_TRAINED = 2
"""Different requests to train for each round: a run that is resumed may repeat one with another model."""
LISTS = ("measured", "trained", "scored", "weights")
"""What is noted of requests: what measurements and trainings started from; models scored, and the weights of these."""
MOST_MISSED = 4
"""Rounds without a request that count: a server could say any number."""
SAME = 1e-4
"""How far, as a part of its length, an initial model may be from the one of the seed: machines round differently."""


@dataclass
class RunProtocol:
    """One run at one hospital; what it needs to remember lies in the run's state folder."""

    folder: Path
    policy: Policy
    rounds: int
    initial: State
    """The weights that the run's seed gives."""
    private: bool = False
    """Whether noise hides what leaves: each answer to something else has other noise, and counts in ε."""
    drawn: bool = False
    """Whether only some sites are asked in each round, so that the first request may come in a later one."""
    _notes: dict[str, Any] = field(default_factory=dict)

    def check(self, request: Request) -> None:
        """Refuse a request that is not the run's next one; remember it otherwise."""
        first, last = (0, 0) if request.kind == "measure" else (1, self.rounds)
        if request.kind in EXCHANGES:
            first = 0  # around a measurement
        if not first <= request.round <= last:
            raise RefusalError(f"{request.kind} in round {request.round}: this run has rounds {first} to {last}")
        if request.kind in EXCHANGES:  # they bring no model
            return
        self._read()
        start = f"{short_name(request.state | add_prefix('combined', request.combined))} {request.counted}"
        if self.private and request.counted is None:  # what it goes on from could change, and its noise would not
            raise RefusalError("the last round of this site that counted is missing, and a private run needs it")
        if request.kind == "measure":
            self._check_measurement(start)
            return
        before, since = self._last_weights()
        weights = before | {name: tensor for name, tensor in request.state.items() if name in self.initial}
        name = short_name(weights)
        if name not in self._notes["weights"]:  # the selected model comes back, however far training went on
            self._check_move(before, weights, request, since)
        model = short_name(request.state | request.combined)
        if request.kind == "train":
            self._count_training(request.round, start)
        if (request.kind == "evaluate" or request.score) and self._count("scored", model, self.rounds + LAST_MODELS):
            self._notes["weights"].append(name)
        self._notes["round"] = max(request.round, self._notes["round"])
        write_whole(self.folder / "received.safetensors", save(weights))
        self._write_notes()

    def _check_measurement(self, start: str) -> None:
        """Refuse to measure again from another start, which would only be another noise on the same numbers."""
        measured = self._notes["measured"]
        if start not in measured:
            if measured:
                raise RefusalError("its images have been measured for this run, and its protocol calls for it once")
            measured.append(start)
            self._write_notes()

    def _count_training(self, number: int, start: str) -> None:
        """Refuse one training too many; where noise hides updates, a second one of a round, as ε counts each once."""
        trained, name = self._notes["trained"], f"{number} {start}"
        if self.private and name not in trained and any(each.startswith(f"{number} ") for each in trained):
            raise RefusalError(
                f"round {number} has been trained here from another model, and a second answer would tell more than "
                "its differential privacy allows"
            )
        self._count("trained", name, TIMES_TRAINED * self.rounds)

    def _count(self, done: str, model: str, most: int) -> bool:
        """Whether something is done with this model for the first time; refuse one model too many."""
        models = self._notes[done]
        if model in models:
            return False
        if len(models) >= most:
            raise RefusalError(f"{most} models of this run have been {done} here, and its protocol calls for no more")
        models.append(model)
        return True

    def _check_move(self, before: State, weights: State, request: Request, since: int | None) -> None:
        """Refuse a leap since the round of the last request, or, without one, from the weights of the seed."""
        moved = distance(before, weights)
        if since is None and self.policy.initial_model:
            return
        if since is None and request.round == 1 and (request.kind == "train" or not self.drawn):
            if moved > SAME:
                raise RefusalError(
                    "the first model is not the one that the run's seed gives, and this hospital trains no other "
                    "(initial_model in its site.toml)"
                )
            return
        missed = min(self._count_missed(request, since), MOST_MISSED)
        self._refuse_leap("the global model", moved, "largest_move", missed)
        for name in sorted(weights.keys() & self.initial.keys()):
            moved = tensor_distance(before[name], weights[name], self.initial[name])
            self._refuse_leap(f"{name} of the global model", moved, "largest_tensor_move", missed)

    def _count_missed(self, request: Request, since: int | None) -> int:
        """Rounds for which the global model may have moved; a server could say any number in its first request."""
        if since is not None:
            return max(1, request.round - since)
        trained = request.round - (request.kind == "train")  # what is trained from is the model of the round before
        return trained if self.drawn else 1

    def _refuse_leap(self, what: str, moved: float, limit: str, missed: int) -> None:
        allowed = getattr(self.policy, limit) * math.sqrt(missed)
        if not moved <= allowed:
            raise RefusalError(
                f"{what} has moved by {moved:.3g} of its length since the last request, and this hospital "
                f"allows {allowed:.3g} ({limit} in its site.toml)"
            )

    def _last_weights(self) -> tuple[State, int | None]:
        """The weights of the last request and its round; before the first one, those of the seed."""
        path = self.folder / "received.safetensors"
        if not path.exists():
            return self.initial, None
        try:
            return self.initial | load_file(path), self._notes["round"]
        except (OSError, SafetensorError, RuntimeError) as error:
            raise RefusalError("what it remembers of the last model is damaged") from error

    def _write_notes(self) -> None:
        write_whole(self.folder / "protocol.json", json.dumps(self._notes) + "\n")

    def _read(self) -> None:
        path = self.folder / "protocol.json"
        try:
            notes: Any = read_json(path) if path.exists() else {"round": 0, **{key: [] for key in LISTS}}
            names = {key: [str(name) for name in notes[key]] for key in LISTS}
            self._notes = {"round": int(notes["round"]), **names}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusalError("what it remembers of this run is damaged") from error


def short_name(state: State) -> str:
    """What tells a state from all others."""
    return checksum(state, "")[:32]


def weights_of(state: State, trainable: Collection[str]) -> State:
    """The trainable entries of a state."""
    return {name: tensor for name, tensor in state.items() if name in trainable}


def rounded(reply: Reply, digits: int) -> Reply:
    """The same reply with its numbers rounded: scores to so many decimals, losses and the like to so many digits."""

    def of(name: str, value: float) -> float:
        return shorten(value, digits) if name in ("loss", "drift", "seconds") else round(value, digits)

    def numbers(values: Any) -> Any:
        return {
            name: numbers(value) if isinstance(value, dict) else of(name, float(value))
            for name, value in values.items()
        }

    return replace(reply, metrics=numbers(reply.metrics))


def shorten(value: float, digits: int) -> float:
    """A number with so many digits that count.

    >>> shorten(0.0012345, 3), shorten(98765.4, 3)
    (0.00123, 98800.0)
    """
    return float(f"{value:.{digits}g}")
