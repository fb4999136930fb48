from collections.abc import Callable

import pytest
import torch

from harmofl.methods.combinations import Accumulated, Combination, Gathered, Mean, Total
from harmofl.states import State


def combine(combination: type[Combination], *values: float | None, previous: State | None = None) -> State:
    combining = combination(previous or {}, num_sites=4)
    for site, value in zip("ABCD", values, strict=False):
        combining.add(site, {} if value is None else {"x": torch.tensor([value])})
    return combining.value()


def test_the_mean_and_the_total_are_over_the_sites_that_sent_something() -> None:
    assert combine(Mean, 1.0, 2.0, 6.0, None)["x"].tolist() == [3.0]
    assert combine(Total, 1.0, 2.0, 6.0, None)["x"].tolist() == [9.0]


def test_what_is_accumulated_grows_by_the_sum_divided_by_the_number_of_all_sites() -> None:
    first = combine(Accumulated, 1.0, 2.0, 5.0, None)
    assert first["x"].tolist() == [2.0]  # 8 / 4
    assert combine(Accumulated, 4.0, previous=first)["x"].tolist() == [3.0]


def test_what_is_gathered_keeps_the_last_value_of_a_site_that_is_silent() -> None:
    first = combine(Gathered, 1.0, 2.0)
    again = combine(Gathered, 7.0, None, previous=first)
    assert {name: tensor.item() for name, tensor in again.items()} == {"x.A": 7.0, "x.B": 2.0}


@pytest.mark.parametrize("combination", [Mean, Total, Accumulated, Gathered])
def test_where_nobody_sends_anything_all_stays_as_it_was(combination: type[Combination]) -> None:
    previous = {"x": torch.tensor([5.0])}
    assert combine(combination, None, None, previous=previous) == previous


def test_the_type_of_what_was_sent_stays() -> None:
    mean = Mean({}, num_sites=1)
    mean.add("A", {"x": torch.ones(2, dtype=torch.float16)})
    assert mean.value()["x"].dtype == torch.float16


@pytest.mark.parametrize("order", [sorted, lambda values: sorted(values, reverse=True)])
def test_sums_run_in_double_precision(order: Callable[[list[float]], list[float]]) -> None:
    assert combine(Mean, *order([2.0**25, 1.0, 1.0, 2.0]))["x"].item() == 2.0**23 + 1
