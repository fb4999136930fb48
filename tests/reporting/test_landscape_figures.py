"""Pictures and tables of landscapes written by hand: quadratic bowls whose lowest places are known."""

import csv
import io
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image

from harmofl.analysis.measured_terms import RunTerms, Terms, write_terms
from harmofl.analysis.results import Landscape, View
from harmofl.reporting import landscape_table
from harmofl.reporting.landscape_figures import FIGURES, write_figures
from harmofl.reporting.landscape_scale import Scale
from harmofl.reporting.style import to_png, to_svg

RUNS = ("FedAvg", "HarmoFL")
SITES = ("A", "B_2", "C$")


def view(name: str = "near", span: float = 0.5, points: int = 9, steepness: float = 1.0) -> View:
    """Site i's bowl has its lowest place at (i/2 · span, 0), so the third's at the edge; its path goes there."""
    axis = np.linspace(-span, span, points)
    first, second = np.meshgrid(axis, axis)
    lowest = [number / 2 * span for number in range(len(SITES))]
    bowls = [0.1 + steepness * ((first - place) ** 2 + second**2) for place in lowest]
    paths = [[[0.0, 0.0], [place / 2, 0.0], [place, 0.0]] for place in lowest]
    return View(name, axis, np.array([bowls, bowls]), np.array([paths, paths]), np.full((2, 3), 0.25))


def landscape(**changes: Any) -> Landscape:
    values: dict[str, Any] = {
        "runs": RUNS,
        "sites": SITES,
        "loss_name": "cross-entropy",
        "num_images": (8, 8, 9),
        "radius": 0.25,
        "views": {each.name: each for each in (view(), view("wide", 4.0), view("drift", 0.1))},
        "rises": np.array([[[1.0, 3.0]] * 3, [[0.0, 2.0]] * 3]),
        "squared_gradients": np.array([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]]),
        "variances": np.array([[1.0, 5.0, 3.0], [2.0, 2.0, 2.0]]),
        "distances": np.array([[[0, 1, 3], [1, 0, 2], [3, 2, 0]], [[0, 6, 1], [6, 0, 1], [1, 1, 0]]], dtype=float),
        "drifts": np.array([[0.1, 0.2, 0.3], [0.3, 0.3, 0.3]]),
        "num_steps": np.full((2, 3), 10),
        "step_sizes": np.array([0.1, 0.1]),
        "betas": np.array([[1.0, 2.0, 0.5], [0.1, 0.1, 0.1]]),
        "points": np.array([[[2.0, 0.5, 0.25], [4.0, 1.0, 0.25]], [[4.0, 3.0, 1.0], [1.0, 1.0, 1.0]]]),
    }
    return Landscape(**(values | changes))


@pytest.mark.parametrize(
    ("name", "plane"),
    [("contours", "near"), ("contours", "drift"), ("surfaces", "wide"), ("mean-surfaces", "near"), ("overlay", "wide")],
)
def test_every_figure_renders_as_png_and_svg(name: str, plane: str) -> None:
    found = landscape()
    figure = FIGURES[name](found, found.views[plane])
    assert Image.open(io.BytesIO(to_png(figure, dpi=30))).format == "PNG"
    svg = to_svg(figure, dpi=30)
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert ">FedAvg</text>" in svg


@pytest.mark.parametrize("name", ["contours", "overlay"])
def test_a_single_run_can_be_drawn(name: str) -> None:
    several = view()
    one = View("near", several.axis, several.losses[:1], several.paths[:1], several.shares[:1])
    svg = to_svg(FIGURES[name](landscape(runs=RUNS[:1], distances=landscape().distances[:1]), one), dpi=30)
    assert ">FedAvg</text>" in svg
    assert "HarmoFL" not in svg


def test_figures_leave_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    to_svg(FIGURES["contours"](landscape(), view()), dpi=30)
    assert dict(matplotlib.rcParams) == before


def test_contours_show_each_sites_path_and_lowest_place() -> None:
    _, second, third = FIGURES["contours"](landscape(), view()).axes[:3]  # sites of the first run
    ends = [line.get_xydata()[-1].tolist() for line in second.lines]
    assert ends[1] == [0.25, 0.0]  # the path
    assert ends[-3] == [0.0, 0.0]  # the model
    assert (ends[-1], second.lines[-1].get_marker()) == ([0.25, 0.0], "x")  # the lowest place
    assert third.lines[-1].get_xydata()[-1].tolist() == [0.5, 0.0]
    assert third.lines[-1].get_marker() == "D"  # at the edge


def test_contours_show_the_points_that_were_computed() -> None:
    points = FIGURES["contours"](landscape(), view(points=11)).axes[0].lines[0].get_xydata()
    assert sorted(map(tuple, points)) == [(a, b) for a in view(points=11).axis for b in view(points=11).axis]


def test_legend_says_that_a_lowest_loss_lies_at_the_edge_only_where_one_does() -> None:
    def words(shown: View) -> str:
        return " ".join(text.get_text() for text in FIGURES["contours"](landscape(), shown).legends[0].get_texts())

    inside = replace(view(), losses=np.stack([view().losses[:, 0]] * 3, axis=1))
    assert "falls further outside" in words(view())
    assert "falls further outside" not in words(inside)


def test_corners_of_a_surface_are_the_points_that_were_computed() -> None:
    panel = FIGURES["mean-surfaces"](landscape(), view()).axes[0]
    assert panel.collections[0].get_array().size == 8 * 8  # faces between 9 × 9 points


def test_table_says_how_large_planes_are_and_whose_lowest_loss_lies_outside() -> None:
    text = landscape_table.to_markdown(landscape(views={"near": view(), "drift": view("drift", 0.1, 13)}))
    assert "Plane near: 9 × 9 points, 0.5 from the model to each side. The lowest loss lies at its edge" in text
    assert "falls further outside (the wide plane shows where) for FedAvg at C$; HarmoFL at C$." in text
    assert "falls further outside for FedAvg at C$; HarmoFL at C$." in text
    inside = replace(view(), losses=view().losses[:, [0, 0, 0]])
    assert "every lowest loss lies inside" in landscape_table.to_markdown(
        landscape(views={"near": inside, "drift": inside})
    )


def test_all_panels_share_one_scale() -> None:
    figure = FIGURES["contours"](landscape(), view("wide", 4.0))
    limits = {panel.collections[0].get_clim() for panel in figure.axes[:8]}
    assert limits == {(0.1, 0.1 + 8**2 + 4**2)}  # (−4, ±4) is farthest from the third site's place (4, 0)


def test_overlay_takes_the_two_sites_whose_gradients_differ_most_at_the_first_run() -> None:
    found = landscape()
    assert found.farthest_pair() == (0, 2)
    names = [text.get_text() for text in FIGURES["overlay"](found, view()).legends[0].get_texts()]
    assert [name.split(" ")[0] for name in names[:2]] == ["A", "C$"]


def test_scale_is_logarithmic_beyond_a_decade_and_survives_infinite_losses() -> None:
    assert not Scale.of(np.array([1.0, 9.0])).is_log
    scale = Scale.of(np.array([0.1, np.inf, 10.0, np.nan]))
    assert scale.is_log
    np.testing.assert_allclose(scale.heights(np.array([0.1, 10.0, np.inf, np.nan])), [-1, 1, 1, 1])


@pytest.mark.parametrize("losses", [np.full((2, 3, 9, 9), 0.7), np.zeros((2, 3, 9, 9))])
def test_flat_surfaces_can_be_drawn(losses: np.ndarray[Any, Any]) -> None:
    flat = View("near", view().axis, losses, view().paths, view().shares)
    for name in ("contours", "mean-surfaces"):
        image = Image.open(io.BytesIO(to_png(FIGURES[name](landscape(), flat), dpi=30))).convert("L")
        assert image.getextrema()[0] < 100  # the darkest colour is the lowest loss's


def test_files_are_named_after_figure_and_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmofl.reporting.landscape_figures.FIGURES", {"contours": FIGURES["contours"]})
    paths = write_figures(landscape(views={"near": view()}), tmp_path)
    assert [path.name for path in paths] == ["contours-near.png", "contours-near.svg"]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_the_drift_is_drawn_beside_its_terms_where_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harmofl.reporting.landscape_figures.FIGURES", {})
    assert write_figures(landscape(), tmp_path) == []
    terms = Terms(1, {"A": 1.0}, {"A": 1.0}, 1.0, {"A": 1.0}, {"noise": 1.0})
    write_terms(tmp_path, [RunTerms("../run", "FedAvg", {"A": {1: 1.0}}, terms)])
    assert [path.name for path in write_figures(landscape(), tmp_path)] == ["drift-terms.png", "drift-terms.svg"]


def test_table_holds_sharpness_with_its_standard_error_and_the_terms_of_the_bound() -> None:
    rows = {(run, site): numbers for run, site, numbers in landscape_table.landscape_rows(landscape())}
    first, whole = rows["FedAvg", "A"], rows["FedAvg", "all sites"]
    assert (first["loss"], first["sharpness"], first["standard error"]) == (pytest.approx(0.1), 2.0, 1.0)
    assert (first["‖∇F‖²"], first["σ²"], first["ε"], first["Γ"]) == (1.0, 1.0, 3.0, 0.1)
    assert (whole["‖∇F‖²"], whole["ε"]) == (2.0, 3.0)
    # K η = 1: 4 · 2, then 4 · (3 · 2/3)², then 2 · 10 · 0.01 · 5
    assert whole["bound on Γ"] == pytest.approx(8 + 16 + 1)
    # G² = max(2 − 0.5, 4 − 1), so 4 (3 + 0.5); if convex, β = 2 and G² = 4 − 2 · 2 · 0.25, so 4 · 3 + 8 · 2 · 0.25.
    assert (whole["G²"], whole["second line"]) == (3.0, pytest.approx(14 + 16 + 1))
    assert whole["second line if convex"] == pytest.approx(12 + 4 + 16 + 1)


def test_markdown_and_csv_say_the_same() -> None:
    text = landscape_table.to_markdown(landscape())
    assert "| FedAvg | B\\_2 |" in text
    assert "2 (1)" in text
    lines = list(csv.DictReader(io.StringIO(landscape_table.to_csv(landscape()))))
    assert len(lines) == len(RUNS) * (len(SITES) + 1)
    assert (lines[0]["site"], lines[0]["sharpness"], lines[0]["bound on Γ"]) == ("A", "2", "")


def test_the_bound_can_be_computed_again_from_the_rows() -> None:
    lines = list(csv.DictReader(io.StringIO(landscape_table.to_csv(landscape(num_steps=np.array([[8, 10, 12]] * 2))))))
    *sites, whole = lines[: len(SITES) + 1]
    steps, rate, count = float(whole["K"]), float(whole["η"]), len(sites)
    assert (steps, rate) == (10, 0.1)
    moved = 4 * (steps * rate) ** 2
    apart = (float(whole["ε"]) * (count - 1) / count) ** 2
    noise = 2 * steps * rate**2 * max(float(site["σ²"]) for site in sites)
    assert float(whole["bound on Γ"]) == pytest.approx(moved * (float(whole["‖∇F‖²"]) + apart) + noise)
    assert [site["K"] for site in sites] == ["8", "10", "12"]
    assert "2Kη² · largest σ²" in landscape_table.to_markdown(landscape())


def test_the_model_is_called_the_selected_one() -> None:
    assert "around the selected model" in landscape_table.to_markdown(landscape())
    for name in ("contours", "surfaces"):
        assert "around the selected model" in FIGURES[name](landscape(), view()).get_suptitle()


def test_tables_are_written(tmp_path: Path) -> None:
    assert [path.name for path in landscape_table.write_tables(landscape(), tmp_path)] == [
        "landscape.md",
        "landscape.csv",
    ]
