import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from harmofl.reporting import figures
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
    image = Image.open(io.BytesIO(figures.to_png(figure, dpi=50)))
    assert image.format == "PNG"
    svg = figures.to_svg(figure)
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert ">HarmoFL</text>" in svg


def test_figures_leave_matplotlib_as_it_was(two_runs: list[FinishedRun]) -> None:
    before = dict(matplotlib.rcParams)
    figures.to_svg(figures.convergence(two_runs))
    assert dict(matplotlib.rcParams) == before


def test_same_records_give_the_same_svg(two_runs: list[FinishedRun]) -> None:
    first, second = (figures.to_svg(figures.drift(two_runs)) for _ in range(2))
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
    assert "not in the records" in figures.to_svg(figure)


def test_site_dots_stand_at_the_scores(two_runs: list[FinishedRun]) -> None:
    axes = figures.per_site_scores(two_runs).axes[0]
    dots = {line.get_label(): line.get_xdata() for line in axes.lines}
    np.testing.assert_allclose(dots["HarmoFL"], [92, 78, 76])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B", "C"]


def test_methods_differ_in_more_than_colour() -> None:
    styles = [figures._line_style(index) for index in range(9)]
    for shown in ("color", "marker"):
        pairs = {(str(style["linestyle"]), style[shown]) for style in styles}
        assert len(pairs) == len(styles)


def test_names_with_dollars_and_angle_brackets_are_shown_as_they_are(make_run: MakeRun) -> None:
    svg = figures.to_svg(figures.per_site_scores([make_run("fedavg", {"$x$ <b>": 0.9, "B": 0.8})]))
    assert "$x$ &lt;b&gt;" in svg


def test_image_grid_clips_and_lays_images_side_by_side() -> None:
    before = np.full((2, 3, 20, 20), 0.25)
    after = torch.full((2, 3, 20, 20), 1.5, requires_grad=True)
    figure = figures.image_grid({"A": {"before": before, "after": after}, "B": {"before": before}})
    strip = figure.axes[1].images[0].get_array()
    assert strip.shape == (20, 20 + 1 + 20, 4)
    assert strip[0, 0].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert strip[0, 20].tolist() == [0.0, 0.0, 0.0, 0.0]
    svg = figures.to_svg(figure)
    assert ">before</text>" in svg
    assert "data:image/png;base64" in svg


def test_gray_image_grid_shows_the_middle_channel() -> None:
    volume = np.stack([np.full((8, 8), value) for value in (0.1, 0.5, 0.9)])[None]
    figure = figures.image_grid({"A": {"before": volume}}, gray=True)
    assert figure.axes[0].images[0].get_array()[0, 0].tolist() == [0.5, 0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("shape", "message"),
    [((3, 8, 8), r"A, before should have shape \(n, C, H, W\)"), ((1, 5, 8, 8), "5 channels.*gray=True")],
)
def test_image_grid_names_what_it_cannot_show(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        figures.image_grid({"A": {"before": np.zeros(shape)}})
