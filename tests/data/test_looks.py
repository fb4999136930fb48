"""How images are stored, and what of it a model remembers."""

import numpy as np
import pytest

from harmofl.data.looks import Look, count_strange_looks, describe_strangeness, list_depths_and_views, look_of, looks_in
from harmofl.data.scans import Geometry, Scan
from harmofl.settings import DataSettings

SHALLOW, DEEP, AXIAL, SAGITTAL = (
    Look("8-bit", ""),
    Look("not 8-bit", ""),
    Look("not 8-bit", "axial"),
    Look("not 8-bit", "sagittal"),
)
PIXELS = np.zeros((1, 1, 2, 2))


def test_a_scan_has_a_depth_and_a_plane() -> None:
    assert look_of(Scan(PIXELS.astype(np.uint8))) == SHALLOW
    assert look_of(Scan(PIXELS.astype(np.float32), Geometry(axis=2))) == AXIAL


def test_what_was_decoded_before_looks_were_noted_is_unknown() -> None:
    facts = {"slices": np.ones(2)}
    assert looks_in(facts) == []
    assert looks_in(facts | {"eight_bit": np.array([1.0, 0.0]), "axis": np.array([-1.0, 0.0])}) == [SHALLOW, SAGITTAL]
    assert list_depths_and_views([[SHALLOW], []]) == ((), ())
    assert list_depths_and_views([[SHALLOW], [AXIAL]]) == (("8-bit", "not 8-bit"), ("axial",))


@pytest.mark.parametrize("trained", [None, {}, {"depths": ["8-bit", "not 8-bit"], "views": []}])
def test_nothing_is_strange_where_nothing_or_both_are_known(trained: dict[str, list[str]] | None) -> None:
    assert not any(describe_strangeness(look, trained, DataSettings()) for look in (SHALLOW, DEEP, AXIAL))


def test_strange_images_are_counted() -> None:
    trained = {"depths": ["not 8-bit"], "views": ["axial"]}
    found = count_strange_looks([SHALLOW, SHALLOW, AXIAL, SAGITTAL, DEEP], trained, DataSettings())
    assert sorted(found.values()) == [1, 2]
    assert found["its slices are sagittal, those of the training images axial"] == 1
    assert sum(count_strange_looks([SHALLOW], trained, DataSettings(intensity="percentile")).values()) == 0
