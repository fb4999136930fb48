"""A landscape on disk, so that drawing it again takes seconds: plain arrays, nothing that could run."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from harmofl.analysis.results import Landscape, Options, View
from harmofl.data.facts import DataFacts
from harmofl.files import write_whole
from harmofl.version import __version__

FORMAT = 4


def key_of(fingerprints: Sequence[str], labels: Sequence[str], facts: DataFacts | None, options: Options) -> str:
    """What the numbers depend on: the runs, in this order, a folder's images and masks, and how they are looked at."""
    parts = {"format": FORMAT, "version": __version__, "runs": list(fingerprints), "labels": list(labels)}
    seen = {"data": facts.images} if facts else {}  # `images` is an option: how many
    return json.dumps(parts | seen | asdict(options), sort_keys=True)


def save_landscape(path: Path, landscape: Landscape, key: str) -> None:
    """Write a landscape under its key."""
    arrays: dict[str, Any] = {"key": key}
    for field in fields(landscape):
        if field.name != "views":
            arrays[field.name] = getattr(landscape, field.name)
    for view in landscape.views.values():
        arrays |= {f"view.{view.name}.{name}": value for name, value in vars(view).items() if name != "name"}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **{name: np.asarray(value) for name, value in arrays.items()})
    write_whole(path, buffer.getvalue())


def load_landscape(path: Path, key: str) -> Landscape | None:
    """The landscape that was kept under this key, if there is one that can be read."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            if str(file["key"]) != key:
                return None
            return _landscape({name: file[name] for name in file.files})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _landscape(arrays: Mapping[str, Any]) -> Landscape:
    names = dict.fromkeys(name.split(".")[1] for name in arrays if name.startswith("view."))
    of_view = [field.name for field in fields(View) if field.name != "name"]
    views = {name: View(name, **{part: arrays[f"view.{name}.{part}"] for part in of_view}) for name in names}
    values = {field.name: arrays[field.name] for field in fields(Landscape) if field.name != "views"}
    words = {name: tuple(values[name].tolist()) for name in ("runs", "sites", "num_images")}
    plain = {"loss_name": str(values["loss_name"]), "radius": float(values["radius"])}
    return Landscape(**(values | words | plain), views=views)
