"""Bytes as the content of Flower's messages, and back."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

PAYLOAD = "payload"
RAW = "raw"


def pack(data: bytes) -> RecordDict:
    """Make bytes a message's content: an array, as Flower cuts nothing else into parts."""
    array = Array(dtype="uint8", shape=(len(data),), stype=RAW, data=data)
    content: dict[str, Any] = {PAYLOAD: ArrayRecord({PAYLOAD: array})}
    return RecordDict(content)


def with_nonce(content: RecordDict, nonce: str) -> RecordDict:
    """The same content, its parts shared, under a name of its own: Flower names a message by what is in it."""
    return RecordDict({**content, "nonce": ConfigRecord({"nonce": nonce})})


def unpack(content: RecordDict) -> bytes:
    """Return the bytes of a message's content; nothing is deserialized."""
    try:
        array = content.array_records[PAYLOAD][PAYLOAD]
    except KeyError:
        raise ValueError("a message without a payload") from None
    return bytes(array.data)
