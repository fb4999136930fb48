"""Overlays tint what was predicted and draw its outline around it."""

import numpy as np
import pytest

from harmofl.inference.overlays import FILL, colour_of, draw_labels, resize_labels

WHITE = 255


def test_a_thin_structure_is_tinted_and_its_outline_lies_around_it() -> None:
    image, labels = np.full((21, 21, 3), WHITE, dtype=np.uint8), np.zeros((21, 21), dtype=np.uint8)
    labels[:, 10] = 1
    drawn = draw_labels(image, labels, thickness=2)
    colour = np.array(colour_of(1))
    tint = np.rint((1 - FILL) * WHITE + FILL * colour)
    assert (drawn[:, 10] == tint).all()
    assert (drawn[:, [8, 9, 11, 12]] == colour).all()
    assert (drawn[:, [7, 13]] == 102).all()  # a rim of 0.4 of the image's brightness
    assert (drawn[:, :7] == WHITE).all()


def test_two_classes_that_touch_are_divided_by_a_line_of_each() -> None:
    image, labels = np.zeros((9, 12, 3), dtype=np.uint8), np.zeros((9, 12), dtype=np.uint8)
    labels[:, :6], labels[:, 6:] = 1, 2
    drawn = draw_labels(image, labels, thickness=3)
    assert drawn[4, 5].tolist() == list(colour_of(1))
    assert drawn[4, 6].tolist() == list(colour_of(2))
    assert drawn[4, 0].tolist() == [round(FILL * value) for value in colour_of(1)]


@pytest.mark.parametrize("size", [(4, 4), (3, 5)])
def test_a_thin_structure_survives_shrinking(size: tuple[int, int]) -> None:
    labels = np.zeros((16, 16), dtype=np.uint8)
    labels[7, :], labels[12, :] = 2, 5
    assert set(np.unique(resize_labels(labels, size))) == {0, 2, 5}


def test_growing_labels_invents_none() -> None:
    labels = np.array([[0, 3], [7, 0]], dtype=np.uint8)
    assert resize_labels(labels, (4, 4)).tolist() == [[0, 0, 3, 3], [0, 0, 3, 3], [7, 7, 0, 0], [7, 7, 0, 0]]
