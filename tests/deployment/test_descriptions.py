"""What sites say of their images: most of them decide, and the odd one is named."""

from typing import Any

import pytest

from harmofl.deployment.descriptions import outvote
from harmofl.errors import RunError


def described(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    usual = {"synthetic": False, "channels": 3, "classes": ["0", "1"], "num_train": 100}
    return {site: usual | changes.get(site, {}) for site in "ABCD"}


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"channels": 4}, "images of 4 channels, most have images of 3 channels"),
        ({"synthetic": True, "channels": None}, "synthetic images"),
        ({"num_train": 2}, "2 training images (median 100)"),
        ({"classes": [str(number) for number in range(1000)]}, "1000 classes (median 2)"),
    ],
)
def test_one_site_that_differs_is_left_out_and_named(odd: dict[str, Any], words: str) -> None:
    agreeing, reasons = outvote(described(C=odd), as_the_smallest=True)
    assert list(agreeing) == ["A", "B", "D"]
    assert words in reasons["C"]


def test_a_small_site_stays_where_it_does_not_cut_the_others() -> None:
    assert len(outvote(described(C={"num_train": 2}), as_the_smallest=False)[0]) == 4


def test_half_against_half_is_an_error_that_names_all() -> None:
    with pytest.raises(RunError, match="A images of 3 channels, B images of 3 channels, C images of 4 channels"):
        outvote(described(C={"channels": 4}, D={"channels": 4}), as_the_smallest=False)
