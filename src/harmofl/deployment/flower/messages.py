"""Bytes as the content of Flower's messages, and back."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

PAYLOAD = "payload"
RAW = "raw"


def pack(data: bytes, nonce: str = "") -> RecordDict:
    """Make bytes a message's content: an array, as Flower cuts nothing else into parts."""
    array = Array(dtype="uint8", shape=(len(data),), stype=RAW, data=data)
    content: dict[str, Any] = {PAYLOAD: ArrayRecord({PAYLOAD: array})}
    if nonce:
        content["nonce"] = ConfigRecord({"nonce": nonce})
    return RecordDict(content)


def unpack(content: RecordDict) -> bytes:
    """Return the bytes of a message's content; nothing is deserialized."""
    try:
        array = content.array_records[PAYLOAD][PAYLOAD]
    except KeyError:
        raise ValueError("a message without a payload") from None
    return bytes(array.data)
