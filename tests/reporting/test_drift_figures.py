"""The drift beside the terms of its bound, from numbers written by hand."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest

from harmofl.analysis.measured_terms import RunTerms, Terms
from harmofl.reporting.drift_figures import CAPTION, drift_with_terms
from harmofl.reporting.style import to_svg


def terms(number: int, size: float = 1.0) -> Terms:
    return Terms(
        number,
        squared_gradients={"A": 1.0 * size, "B$": 2.0 * size},
        variances={"A": 30.0, "B$": 40.0},
        epsilon=5.0,
        drifts={"A": 0.01, "B$": 0.02},
        bound={"gradient": 0.25, "dissimilarity": 0.5, "noise": 0.125},
    )


def run(label: str, found: Terms, scale: float = 1.0) -> RunTerms:
    curves = {site: {1: 4.0 * scale * size, 2: 2.0 * scale, 3: 0.1 * scale} for site, size in (("A", 1), ("B$", 2))}
    return RunTerms(f"../{label}", label, curves, found)


def test_every_run_has_its_drift_on_the_left_and_its_terms_on_the_right() -> None:
    figure = drift_with_terms([run("FedAvg", terms(2))])
    left, right = figure.axes
    assert left.get_title(loc="left") == "FedAvg"
    assert right.get_title(loc="left") == "at the selected round, 2"
    np.testing.assert_allclose(left.lines[-1].get_xydata(), [[1, 8], [2, 2], [3, 0.1]])
    assert left.lines[0].get_xdata()[0] == 2  # the measured round is marked
    heights = [float(line.get_ydata()[0]) for line in right.lines]
    assert heights == [1.0, 2.0, 30.0, 40.0, 5.0, 0.01, 0.02, 0.875]
    columns = [round(float(np.mean(line.get_xdata()))) for line in right.lines]
    assert columns == [0, 0, 1, 1, 2, 3, 3, 4]
    assert right.get_yscale() == left.get_yscale() == "log"


def test_the_second_line_of_the_bound_has_a_column_where_it_was_estimated() -> None:
    found = replace(terms(2), second_line={"in general": 1.5, "if convex": 9.0})
    _, right = drift_with_terms([run("FedAvg", found)]).axes
    assert float(right.lines[-1].get_ydata()[0]) == 1.5
    assert [label.get_text() for label in right.get_xticklabels()][-2:] == ["bound\non Γ", "its 2nd\nline"]


def test_runs_share_their_scales() -> None:
    figure = drift_with_terms([run("FedAvg", terms(2)), run("HarmoFL", terms(3, 0.1), scale=0.1)])
    lefts, rights = figure.axes[::2], figure.axes[1::2]
    assert lefts[0].get_ylim() == lefts[1].get_ylim()
    assert rights[0].get_ylim() == rights[1].get_ylim()


def test_where_every_site_selected_its_own_model_no_round_is_marked() -> None:
    left, right = drift_with_terms([run("local", terms(0))]).axes
    assert right.get_title(loc="left") == "at the selected models"
    assert len(left.lines) == 2


@pytest.mark.parametrize("centralized_first", [True, False])
def test_sites_without_a_curve_of_their_own_are_named_too(centralized_first: bool) -> None:
    centralized = RunTerms("../c", "Centralized", {"pooled": {1: 4.0, 2: 2.0}}, terms(2))
    runs = [centralized, run("FedBN", terms(0))]
    figure = drift_with_terms(runs if centralized_first else runs[::-1])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["A", "B$", "pooled"]
    colours = [line.get_color() for line in legend.get_lines()]
    curves = figure.axes[2 if centralized_first else 0].lines  # of FedBN
    assert [line.get_color() for line in curves] == colours[:2]


@pytest.mark.parametrize("count", [1, 3])
def test_it_renders_and_leaves_matplotlib_as_it_was(count: int) -> None:
    before = dict(matplotlib.rcParams)
    svg = to_svg(drift_with_terms([run(f"run {n}", terms(2)) for n in range(count)]))
    assert ">run 0</text>" in svg
    assert dict(matplotlib.rcParams) == before


def test_the_caption_claims_no_theorem() -> None:
    assert "not claimed as proven" in CAPTION
