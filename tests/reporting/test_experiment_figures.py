from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harmofl.reporting.experiment_figures import (
    Point,
    drift_by_site,
    score_by_bytes,
    score_curves,
    scores_by_variation,
    unseen_scores,
)
from harmofl.reporting.tables import MethodScores
from harmofl.runs.finished import FinishedRun

MakeRun = Callable[..., FinishedRun]


def with_records(run: FinishedRun, found: list[dict[str, Any]]) -> FinishedRun:
    return FinishedRun(run.folder, run.summary, found, run.config)


def point(make_run: MakeRun, seed: int, setting: float | str, *scores: float) -> Point:
    run = make_run("harmofl", dict(zip("AB", scores, strict=True)), seed=seed)
    return Point("HarmoFL", "method.band", setting, MethodScores("HarmoFL", (run,)))


def test_a_curve_runs_in_the_order_of_its_settings(make_run: MakeRun) -> None:
    settings = ("full", 0.1, "none", 0.02, "dc")
    points = [point(make_run, place, value, 0.5 + place / 10, 0.5) for place, value in enumerate(settings)]
    axes = score_curves(points).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["none", "dc", "0.02", "0.1", "full"]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [60, 70, 65, 55, 50])
    assert axes.get_title(loc="left") == "Test accuracy against band"


def test_bars_of_a_curve_are_standard_errors_over_sites(make_run: MakeRun) -> None:
    axes = score_curves([point(make_run, 0, 0.1, 0.9, 0.7), point(make_run, 1, 0.2, 0.8, 0.8)]).axes[0]
    bars = [segment[:, 1] for collection in axes.collections for segment in collection.get_segments()]
    # 90 and 70: the sample std is 20 / √2, and there are two sites
    np.testing.assert_allclose(bars[0], [80 - 10, 80 + 10])
    np.testing.assert_allclose(bars[1], [80, 80])


def test_a_band_of_a_curve_is_the_std_over_seeds(make_run: MakeRun) -> None:
    runs = tuple(make_run("harmofl", {"A": score, "B": score}, seed=seed) for seed, score in enumerate((0.7, 0.9)))
    axes = score_curves([Point("HarmoFL", "method.radius", 0.05, MethodScores("HarmoFL", runs))]).axes[0]
    heights = axes.collections[-1].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((80 - 200**0.5, 80 + 200**0.5))
    assert "band: ± std over seeds" in axes.get_xlabel()


def test_drift_has_a_panel_per_method_and_a_line_per_site_averaged_over_seeds(make_run: MakeRun) -> None:
    def drifting(method: str, seed: int, *values: float) -> FinishedRun:
        found = [
            {"round": number, "site": site, "phase": "train", "drift": value * (1 if site == "A" else 3)}
            for number, value in enumerate(values, 1)
            for site in ("A", "B")
        ]
        return with_records(make_run(method, {"A": 0.9, "B": 0.8}, seed=seed), found)

    runs = [drifting("fedavg", 0, 1.0, 2.0), drifting("fedavg", 1, 3.0, 2.0), drifting("harmofl", 0, 1.0)]
    first, second = drift_by_site(runs).axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["FedAvg", "HarmoFL"]
    np.testing.assert_allclose(first.lines[0].get_xydata(), [[1, 2], [2, 2]])
    np.testing.assert_allclose(first.lines[1].get_xydata(), [[1, 6], [2, 6]])
    np.testing.assert_allclose(second.lines[1].get_xydata(), [[1, 3]])
    assert first.get_ylim() == second.get_ylim()


def test_bytes_are_summed_over_rounds_and_averaged_over_sites(make_run: MakeRun) -> None:
    runs = [make_run(method, {"A": 0.9, "B": 0.8}, rounds=2) for method in ("fedavg", "centralized")]
    (line,) = score_by_bytes(runs).axes[0].lines  # a reference sends no model
    assert line.get_label() == "FedAvg"
    np.testing.assert_allclose(line.get_xdata(), [3, 6])  # 1 MB up and 2 MB down in each round
    assert line.get_ydata()[-1] == pytest.approx(85)


def test_bytes_sent_before_the_first_round_count(make_run: MakeRun) -> None:
    run = make_run("harmofl", {"A": 0.9, "B": 0.8}, rounds=2)
    before = [{"round": 0, "site": site, "phase": "measure", "bytes_up": 500_000} for site in ("A", "B")]
    (line,) = score_by_bytes([replace(run, records=(*before, *run.records))]).axes[0].lines
    np.testing.assert_allclose(line.get_xdata(), [3.5, 6.5])


def test_unseen_hospitals_have_a_row_each_and_one_for_their_mean(make_run: MakeRun) -> None:
    scores = {"A": 0.9, "B": 0.6}
    runs = [make_run(method, scores) for method in ("fedavg", "harmofl")]
    axes = unseen_scores(runs).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B", "mean of all"]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [90, 60])
    np.testing.assert_allclose(axes.lines[1].get_xdata(), [75])
    rows = [line.get_ydata()[0] for line in (axes.lines[0], axes.lines[2])]
    assert rows[0] != rows[1]  # equal scores stay apart
    assert axes.get_title(loc="left") == "Test accuracy at a hospital that took no part"


def test_variations_are_rows_in_their_order_with_bars_over_seeds(make_run: MakeRun) -> None:
    def scored(row: str, variation: str, *averages: float) -> Point:
        name = f"{row}-{variation}"
        runs = [
            with_title(make_run("fedavg", {"A": score, "B": score}, seed=len(made) + seed), name, seed)
            for seed, score in enumerate(averages)
        ]
        made.extend(runs)
        return Point(row, "variation", variation, MethodScores(name, tuple(runs)))

    made: list[FinishedRun] = []
    points = [scored("FedAvg", "zebra", 0.5, 0.7), scored("FedAvg", "ant", 0.8), scored("FedBN", "zebra", 0.9)]
    axes = scores_by_variation(points).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["zebra", "ant"]
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_xdata(), dtype=float), [60, 80])
    assert [line.get_label() for line in axes.lines] == ["FedAvg", "FedBN"]
    above, below = (float(np.asarray(line.get_ydata(), dtype=float)[0]) for line in axes.lines)
    assert above < 0 < below
    assert above == -below  # the first variation's row is at 0
    (alone,) = scores_by_variation(points[:2]).axes[0].lines
    np.testing.assert_array_equal(alone.get_ydata(), [0, 1])
    (bar, none), _ = (collection.get_segments() for collection in axes.collections)
    assert np.ptp(bar[:, 0]) == pytest.approx(2 * 200**0.5)  # 50 and 70: a sample std of √200 on each side
    assert np.ptp(none[:, 0]) == 0


def with_title(run: FinishedRun, title: str, seed: int) -> FinishedRun:
    return FinishedRun(run.folder, {**run.summary, "title": title, "seed": seed}, run.records, run.config)


def test_a_method_that_is_scored_in_its_own_way_has_a_footnote(make_run: MakeRun) -> None:
    scores = {"A": 0.9, "B": 0.6}
    unseen = {site: {"metric": score, "note": "statistics of its own images"} for site, score in scores.items()}
    figure = unseen_scores([make_run("fedavg", scores), make_run("fedbn", scores, unseen=unseen)])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg", "FedBN*"]
    assert "* FedBN: statistics of its own images" in figure.axes[0].get_xlabel()
