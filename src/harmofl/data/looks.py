"""How images are stored, where that decides what the network sees: their depth, and the view of their slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harmofl.data.scans import VIEWS, Scan
from harmofl.settings import DataSettings

EIGHT_BIT, OTHER = "8-bit", "not 8-bit"


class Look(NamedTuple):
    """Of one picture or volume."""

    depth: str
    """8-bit or not, as data.intensity = "auto" scales the two differently."""
    view: str
    """Of its slices: sagittal, coronal or axial; empty where the file does not say."""


def facts_of_look(scan: Scan) -> dict[str, float]:
    """The same in numbers, as the cache keeps them."""
    axis = scan.geometry.axis
    return {"eight_bit": float(scan.pixels.dtype == np.uint8), "axis": -1.0 if axis is None else float(axis)}


def look_of(scan: Scan) -> Look:
    """How a scan is stored."""
    facts = facts_of_look(scan)
    return _look(facts["eight_bit"], facts["axis"])


def looks_in(facts: Mapping[str, NDArray[np.float64]]) -> list[Look]:
    """The looks of decoded images, in their order; none where they were decoded before looks were noted."""
    if not {"eight_bit", "axis"} <= facts.keys():
        return []
    return [_look(*pair) for pair in zip(facts["eight_bit"].tolist(), facts["axis"].tolist(), strict=True)]


def _look(eight_bit: float, axis: float) -> Look:
    return Look(EIGHT_BIT if eight_bit else OTHER, "" if axis < 0 else VIEWS[int(axis)])


def list_depths_and_views(of_sites: Iterable[Iterable[Look]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The depths and views of all sites' images; none if a site's are not known."""
    each = [set(looks) for looks in of_sites]
    if not all(each):
        return (), ()
    kinds = set().union(*each)
    return tuple(sorted({look.depth for look in kinds})), tuple(sorted({look.view for look in kinds if look.view}))


def describe_strangeness(look: Look, trained: Mapping[str, Any] | None, data: DataSettings) -> tuple[str, ...]:
    """What about an image may mislead a model, given what it keeps of its training images."""
    depths, views = (list((trained or {}).get(name) or ()) for name in ("depths", "views"))
    notes = []
    if data.intensity == "auto" and depths and look.depth not in depths:
        differ = "data.intensity = 'auto' scales the two differently, so that the model may see another picture"
        notes.append(f"its values are {look.depth}, those of the training images {depths[0]}: {differ}")
    if data.dimensions == 2 and look.view and views and look.view not in views:
        notes.append(f"its slices are {look.view}, those of the training images {' or '.join(views)}")
    return tuple(notes)


def count_strange_looks(looks: Iterable[Look], trained: Mapping[str, Any] | None, data: DataSettings) -> Counter[str]:
    """What about some images may mislead a model, and about how many."""
    counts: Counter[str] = Counter()
    for look, count in Counter(looks).items():
        counts.update(dict.fromkeys(describe_strangeness(look, trained, data), count))
    return counts
