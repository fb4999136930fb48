import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image

from harmofl.reporting import figures
from harmofl.reporting.style import to_png, to_svg
from harmofl.runs.finished import FinishedRun

MakeRun = Callable[..., FinishedRun]
DRAWINGS = [figures.convergence, figures.drift, figures.per_site_scores]


def records(phase: str, name: str, rounds: dict[int, dict[str, float]]) -> list[dict[str, Any]]:
    return [
        {"round": number, "site": site, "phase": phase, name: value}
        for number, values in rounds.items()
        for site, value in values.items()
    ]


def with_records(run: FinishedRun, found: list[dict[str, Any]]) -> FinishedRun:
    return FinishedRun(run.folder, run.summary, found, run.config)


@pytest.mark.parametrize("draw", DRAWINGS)
def test_figures_render_as_png_and_svg(draw: Callable[..., Any], two_runs: list[FinishedRun]) -> None:
    figure = draw(two_runs)
    image = Image.open(io.BytesIO(to_png(figure, dpi=50)))
    assert image.format == "PNG"
    svg = to_svg(figure)
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert ">HarmoFL</text>" in svg


def test_figures_leave_matplotlib_as_it_was(two_runs: list[FinishedRun]) -> None:
    before = dict(matplotlib.rcParams)
    to_svg(figures.convergence(two_runs))
    assert dict(matplotlib.rcParams) == before


def test_same_records_give_the_same_svg(two_runs: list[FinishedRun]) -> None:
    first, second = (to_svg(figures.drift(two_runs)) for _ in range(2))
    assert first == second


def test_convergence_is_the_mean_over_sites_and_skips_rounds_that_lack_one(make_run: MakeRun) -> None:
    run = make_run("fedavg", {"A": 0.9, "B": 0.8})
    rounds = {1: {"A": 0.5, "B": 0.3}, 2: {"A": 0.9}, 3: {"A": 0.8, "B": 0.6}}
    line = figures.convergence([with_records(run, records("test", "metric", rounds))]).axes[0].lines[0]
    np.testing.assert_allclose(line.get_xydata(), [[1, 40.0], [3, 70.0]])


def test_convergence_averages_seeds_over_the_rounds_they_share(make_run: MakeRun) -> None:
    rounds = [{1: {"A": 0.4, "B": 0.4}, 2: {"A": 0.5, "B": 0.5}}, {1: {"A": 0.6, "B": 0.6}}]
    runs = [
        with_records(make_run("fedavg", {"A": 0.9, "B": 0.8}, seed=seed), records("test", "metric", rounds[seed]))
        for seed in (0, 1)
    ]
    axes = figures.convergence(runs).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 50.0]])
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    # 40 and 60: the sample std is 20 / √2
    assert heights.min() == pytest.approx(50 - 200**0.5)
    assert heights.max() == pytest.approx(50 + 200**0.5)


def test_drift_is_the_mean_over_sites_that_answered(make_run: MakeRun) -> None:
    run = make_run("fedavg", {"A": 0.9, "B": 0.8})
    found = records("train", "drift", {1: {"A": 1.0, "B": 3.0}, 2: {"A": 4.0}})
    found.append({"round": 2, "site": "B", "phase": "train", "error": "lost"})
    found.append({"round": 2, "site": "server", "phase": "train", "seconds": 0.1})
    axes = figures.drift([with_records(run, found)]).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 2.0], [2, 4.0]])
    assert axes.get_yscale() == "linear"


def test_drift_over_more_than_a_decade_is_on_a_log_axis(make_run: MakeRun) -> None:
    run = make_run("fedavg", {"A": 0.9, "B": 0.8})
    found = records("train", "drift", {1: {"A": 1.0}, 2: {"A": 0.09}, 3: {"A": 0.0}})
    axes = figures.drift([with_records(run, found)]).axes[0]
    assert axes.get_yscale() == "log"
    assert "log scale" in axes.get_ylabel()


@pytest.mark.parametrize("draw", [figures.convergence, figures.drift])
def test_empty_records_are_said_in_the_figure(draw: Callable[..., Any], two_runs: list[FinishedRun]) -> None:
    figure = draw([with_records(run, []) for run in two_runs])
    assert "not in the records" in to_svg(figure)


def test_site_dots_stand_at_the_scores(two_runs: list[FinishedRun]) -> None:
    axes = figures.per_site_scores(two_runs).axes[0]
    dots = {line.get_label(): line.get_xdata() for line in axes.lines}
    np.testing.assert_allclose(dots["HarmoFL"], [92, 78, 76])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B", "C"]


def test_names_with_dollars_and_angle_brackets_are_shown_as_they_are(make_run: MakeRun) -> None:
    svg = to_svg(figures.per_site_scores([make_run("fedavg", {"$x$ <b>": 0.9, "B": 0.8})]))
    assert "$x$ &lt;b&gt;" in svg
