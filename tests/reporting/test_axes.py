import math

import numpy as np
import pytest

from harmofl.reporting.axes import apart


def test_names_at_the_ends_of_lines_keep_their_order_and_their_distance() -> None:
    moved = apart([0.50, 0.98, 0.51, 1.0, 0.1], gap=0.1)
    assert sorted(range(5), key=moved.__getitem__) == [4, 0, 2, 1, 3]
    gaps = np.diff(sorted(moved))
    assert gaps.min() >= 0.1 - 1e-9
    assert max(moved) <= 1
    assert moved[4] == pytest.approx(0.1)
    assert math.fsum((moved[0], moved[2])) == pytest.approx(1.01)
