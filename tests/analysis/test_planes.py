"""Planes grow until the lowest loss of every run and site lies inside, and keep what was computed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harmofl.analysis.landscape import landscape
from harmofl.analysis.losses import Array, surface
from harmofl.analysis.planes import grid_axis, grow_axis
from harmofl.analysis.results import is_lowest_at_edge
from harmofl.events import Event, StepDone
from runs import SITES, train


class Point(nn.Module):
    """A network with two weights that answers with them, whatever the image; counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(2))

    def forward(self, _: Tensor) -> Tensor:
        return self.place


ALONG = [[torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 1.0])]]
IMAGES = [(torch.zeros(1, 1), torch.zeros(1))]


def test_an_axis_holds_zero_exactly() -> None:
    assert grid_axis(0.3, 5).tolist() == pytest.approx([-0.3, -0.15, 0.0, 0.15, 0.3])
    assert grid_axis(0.1, 21)[10] == 0.0


def test_an_axis_that_grows_reaches_twice_as_far_and_keeps_its_points() -> None:
    once = grow_axis(grid_axis(4.0, 9))
    assert once.tolist() == [-8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8]
    assert grow_axis(once).tolist() == [-16, -12, *once.tolist(), 12, 16]


@pytest.mark.parametrize("points", [9, 11, 13, 15, 17])
def test_a_grown_axis_is_symmetric_and_ascending(points: int) -> None:
    axis = grow_axis(grow_axis(grid_axis(0.1, points)))
    assert (np.diff(axis) > 0).all()
    np.testing.assert_array_equal(axis, -axis[::-1])
    assert axis[-1] == pytest.approx(0.4)


def test_known_losses_are_not_computed_again() -> None:
    asked: list[tuple[float, ...]] = []

    def loss(place: Tensor, _: Tensor) -> Tensor:
        asked.append(tuple(place.tolist()))
        return (place[0] - 10) ** 2 + place[1]

    small, large = grid_axis(4.0, 9), grow_axis(grid_axis(4.0, 9))
    inner = np.array(list(surface(Point(), ALONG, small, IMAGES, loss)))
    assert len(asked) == 81
    grown = np.array(list(surface(Point(), ALONG, large, IMAGES, loss, known=inner)))
    assert len(asked) == len(set(asked)) == 169
    np.testing.assert_array_equal(grown, (large[None, :] - 10) ** 2 + large[:, None])


def bowls(*places: tuple[int, int]) -> Array:
    """The losses (1, S, 5, 5) of sites whose lowest one stands at [row, column]."""
    losses = np.ones((1, len(places), 5, 5))
    for site, place in enumerate(places):
        losses[0, site][place] = 0.0
    return losses


def test_the_lowest_loss_at_an_edge_is_told_of_each_site_and_of_the_mean() -> None:
    assert is_lowest_at_edge(bowls((2, 2), (1, 3))).tolist() == [[False, False, False]]
    assert is_lowest_at_edge(bowls((2, 2), (0, 3))).tolist() == [[False, True, False]]  # the mean: 0.5 at both
    assert is_lowest_at_edge(bowls((4, 4), (4, 4))).tolist() == [[True, True, True]]


@pytest.mark.slow
def test_a_plane_grows_at_most_so_often(tmp_path: Path) -> None:
    train(tmp_path / "run", "fedavg", rounds=1, data__sites=SITES[:2])
    options: dict[str, Any] = {"points": 9, "local_epochs": 2, "images": 8, "directions": 2}
    seen: list[Event] = []
    result = landscape([tmp_path / "run"], tmp_path / "out", growths=1, watch=seen.append, **options)
    fixed = landscape([tmp_path / "run"], tmp_path / "fixed", growths=0, **options)
    open_before = {name for name, view in fixed.views.items() if view.is_open.any() and name != "near"}
    assert "drift" in open_before  # after one round the sites descend beyond the plane of their first steps
    for name, view in result.views.items():
        assert len(view.axis) == (13 if name in open_before else 9)
        inside = view.losses[:, :, 2:-2, 2:-2] if name in open_before else view.losses
        np.testing.assert_array_equal(inside, fixed.views[name].losses)
    last = seen[-1]
    assert isinstance(last, StepDone)
    assert last.done == last.total
