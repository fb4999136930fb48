"""A listing kept in a file, so that a large folder need not be listed again while it has not changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from harmofl.data.samples import Listing, Problem, Sample
from harmofl.files import write_whole

_COLUMNS = [field.name for field in fields(Sample) if field.name != "image"]


def keep(path: Path, stamp: Mapping[str, Any], listing: Listing) -> None:
    """Write a listing; one that cannot be kept is simply made again next time."""
    body = json.dumps(
        {
            "images": [sample.image for sample in listing.samples],
            "columns": {name: _encode([getattr(sample, name) for sample in listing.samples]) for name in _COLUMNS},
            "problems": [asdict(problem) for problem in listing.problems],
        }
    ).encode()
    head = json.dumps({"stamp": stamp, "sha256": hashlib.sha256(body).hexdigest()}).encode()
    try:
        write_whole(path, head + b"\n" + body)
    except OSError:
        return


def recall(path: Path, stamp: Mapping[str, Any]) -> Listing | None:
    """Return the listing that was kept with the same stamp; None if there is none or the file is damaged."""
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline())
            if head["stamp"] != stamp:
                return None
            body = file.read()
        if head["sha256"] != hashlib.sha256(body).hexdigest():
            return None
        return _decode_listing(json.loads(body))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _decode_listing(content: dict[str, Any]) -> Listing:
    columns = [_decode(content["columns"][name]) for name in _COLUMNS]
    order = [_COLUMNS.index(field.name) if field.name != "image" else None for field in fields(Sample)]
    values = [content["images"] if index is None else columns[index] for index in order]
    return Listing(
        samples=tuple(map(Sample, *values)),
        problems=tuple(Problem(**problem) for problem in content["problems"]),
    )


def _encode(column: list[Any]) -> dict[str, Any]:
    """Write each value once: there are few sites and many samples."""
    codes = {value: code for code, value in enumerate(dict.fromkeys(column))}
    return {"values": list(codes), "codes": [codes[value] for value in column]}


def _decode(column: dict[str, Any]) -> list[Any]:
    values = column["values"]
    return [values[code] for code in column["codes"]]
