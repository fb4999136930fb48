"""What travels between the server and a site: named tensors and a little JSON, never code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from harmofl.settings import Settings
from harmofl.states import State, prefixed, unprefixed

Kind = Literal["describe", "amplitude", "train", "evaluate"]


@dataclass(frozen=True)
class Request:
    """What the server asks of a site.

    describe: say what the images are like, as the server never sees them. amplitude: measure the training images.
    train: score the received model if `score`, then train from it. evaluate: score the received model; `thorough`
    adds the slow metrics and lets the site save its own model.
    """

    run: str
    kind: Kind
    round: int
    state: State = field(default_factory=dict)
    """The entries of the network that travel; to a site that has not trained yet, the others' initial values too."""
    measurement: State = field(default_factory=dict)
    """What the server made of all sites' measurements, apart from the network whatever the server rule."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    keep: tuple[int, ...] = ()
    """Rounds that the server may still go back to, so the site keeps what it stored after them."""
    score: bool = False
    thorough: bool = False


@dataclass(frozen=True)
class Reply:
    """What a site answers; with an error, nothing else counts."""

    site: str
    state: State = field(default_factory=dict)
    measurement: State = field(default_factory=dict)
    num_examples: int = 0
    num_steps: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """{"train": {name: value}, "val": {site: {name: value}}, "test": {site: {name: value}}}, those that apply."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """What the site's images are like: {"synthetic": …, "channels": …, "classes": …, "num_train": …}."""
    error: str = ""


def as_sent(settings: Settings) -> dict[str, Any]:
    """Settings as they travel: where the model to start from lies is the server's own, and its weights are sent."""
    return settings.with_values("model", initial=None).model_dump(mode="json")


Message = TypeVar("Message", Request, Reply)


def encode(message: Request | Reply) -> bytes:
    """Pack a message as safetensors, its plain fields as JSON in the header."""
    plain = {name: value for name, value in _plain(message).items() if name not in ("state", "measurement")}
    tensors = prefixed("state", message.state) | prefixed("measurement", message.measurement)
    return save_tensors(tensors, metadata={"message": json.dumps(plain)})


def _plain(message: Request | Reply) -> dict[str, Any]:
    empty: dict[str, State] = {"state": {}, "measurement": {}}
    return asdict(type(message)(**{**vars(message), **empty}))


def decode_request(data: bytes) -> Request:
    """Unpack a request."""
    return _decode(Request, data)


def decode_reply(data: bytes) -> Reply:
    """Unpack a reply."""
    return _decode(Reply, data)


def _decode(kind: type[Message], data: bytes) -> Message:
    header_length = int.from_bytes(data[:8], "little")
    try:
        tensors = load_tensors(data)
        plain = json.loads(json.loads(data[8 : 8 + header_length])["__metadata__"]["message"])
        if "keep" in plain:
            plain["keep"] = tuple(plain["keep"])
        return kind(**plain, state=unprefixed("state", tensors), measurement=unprefixed("measurement", tensors))
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a message: {error}") from None
