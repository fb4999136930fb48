"""What travels between the server and a site: named tensors and a little JSON, never code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from harmofl.documents import parse_json
from harmofl.settings import Settings
from harmofl.states import State, add_prefix, select_prefix

Kind = Literal["describe", "survey", "measure", "train", "evaluate", "keys", "shares", "confirm", "unmask"]
EXCHANGES = ("keys", "shares", "confirm", "unmask")
"""What secure aggregation asks for around a measurement or a training."""
MASKED = "masked"
"""The one tensor of a reply whose numbers are masked."""


@dataclass(frozen=True)
class Request:
    """What the server asks of a site.

    describe: say what the images are like, as the server never sees them. survey: tell averages of the training images,
    before anything is trained. measure: look at them, for the method's pieces that want it before the first round.
    train: score the received model if `score`, then train from it. evaluate: score the received model; `thorough`
    adds the slow metrics and lets the site save its own model. keys, shares, confirm, unmask: what secure
    aggregation exchanges before and after a measurement or a training whose numbers leave masked.
    """

    run: str
    kind: Kind
    round: int
    state: State = field(default_factory=dict)
    """The entries of the network that travel; to a site that has not trained yet, the others' initial values too."""
    combined: State = field(default_factory=dict)
    """What the server combined of what the method's pieces sent from all sites, as `piece.name`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    keep: tuple[int, ...] = ()
    """Rounds that the server may still go back to, so the site keeps what it stored after them."""
    counted: int | None = None
    """The last round of this site that counted, 0 before the first: it goes on from what it kept then. A reply that was
    late or refused never counted, and what the site kept with it is dropped. None: every round did."""
    score: bool = False
    thorough: bool = False
    exchange: Mapping[str, Any] = field(default_factory=dict)
    """With secure aggregation: the session, and what other sites have told through the server."""


@dataclass(frozen=True)
class Reply:
    """What a site answers; with an error, only its scores count."""

    site: str
    state: State = field(default_factory=dict)
    """The trained entries of the network that travel."""
    sent: State = field(default_factory=dict)
    """What the method's pieces send beside them, as `piece.name`."""
    num_examples: int = 0
    num_steps: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """{"train": {name: value}, "val": {site: {name: value}}, "test": {site: {name: value}}}, those that apply."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """What the site's images are like: {"synthetic": …, "channels": …, "classes": …, "num_train": …}, or a survey."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What filters of updates, or exchanges of secure aggregation, tell their counterparts at the server, by name."""
    error: str = ""


def settings_to_send(settings: Settings) -> dict[str, Any]:
    """Settings as they travel, without paths of the server's: the weights of the model to start from are sent."""
    here = settings.with_values("model", initial=None).with_values("plugins", files=[])
    return here.with_values("data", folder=None, cache=None).model_dump(mode="json")


Message = TypeVar("Message", Request, Reply)
LARGEST_HEADER = 2**24
"""Bytes of all plain fields and of the names, shapes and types of tensors."""
TENSOR_FIELDS = ("state", "combined", "sent")
UNREADABLE = (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError)
"""What bytes may raise that are no message; torch's own are of tensors of no numbers whose shape has no end."""


def encode(message: Request | Reply) -> bytes:
    """Pack a message as safetensors, its plain fields as JSON in the header."""
    tensors = {name: value for name, value in vars(message).items() if name in TENSOR_FIELDS}
    plain = {name: value for name, value in vars(message).items() if name not in TENSOR_FIELDS}
    packed = {key: tensor for name, state in tensors.items() for key, tensor in add_prefix(name, state).items()}
    return save_tensors(packed, metadata={"message": json.dumps(plain)})


def decode_request(data: bytes) -> Request:
    """Unpack a request."""
    return _decode(Request, data)


def decode_reply(data: bytes) -> Reply:
    """Unpack a reply."""
    return _decode(Reply, data)


def _decode(kind: type[Message], data: bytes) -> Message:
    header_length = int.from_bytes(data[:8], "little")
    try:
        if header_length > LARGEST_HEADER:
            raise ValueError(f"a header of {header_length} bytes")
        tensors = load_tensors(data)
        plain = parse_json(parse_json(data[8 : 8 + header_length], LARGEST_HEADER)["__metadata__"]["message"])
        if "keep" in plain:
            plain["keep"] = tuple(plain["keep"])
        names = [each.name for each in fields(kind) if each.name in TENSOR_FIELDS]
        return kind(**plain | {name: select_prefix(name, tensors) for name in names})
    except UNREADABLE as error:
        raise ValueError(f"not a message: {error}") from None
