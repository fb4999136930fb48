"""Sharpness and drift as a table: one row per run and site, then the run as a whole; and of several seeds together."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harmofl.analysis.measured_terms import Terms
from harmofl.analysis.results import Landscape, View
from harmofl.analysis.run_terms import terms_in
from harmofl.errors import UsageError
from harmofl.files import write_whole
from harmofl.reporting.table_formats import markdown_escape, markdown_line
from harmofl.reporting.tables import MISSING, Cell, Column, Row, Table, sample_std

FILE = "landscape.csv"
ALL = "all sites"
COLUMNS = (
    "loss",
    "sharpness",
    "standard error",
    "‖∇F‖²",
    "σ²",
    "ε",
    "Γ",
    "bound on Γ",
    "second line",
    "in plane",
    "in drift plane",
)
OF_BOUND = ("K", "η", "β", "G²", "second line if convex")
"""Columns of the CSV only, from which the bound can be computed again."""
HEADINGS = (
    "Loss",
    "Sharpness (s.e.)",
    "‖∇F‖²",
    "σ²",
    "ε",
    "Γ measured",
    "Bound on Γ",
    "its second line",
    "Path in plane",
    "in drift plane",
)
APART = {"ε": "ε", "Γ": "Γ of a further epoch"}
"""What tells how far sites are apart, and its heading in a table of several seeds."""

Line = tuple[str, str, dict[str, float]]


def landscape_rows(landscape: Landscape) -> list[Line]:
    """The numbers of every run and site; of a run as a whole, means over sites and the largest ε."""
    rows = []
    for run, label in enumerate(landscape.runs):
        for site, name in enumerate((*landscape.sites, ALL)):
            rows.append((label, name, _numbers(landscape, run, site)))
    return rows


def _numbers(landscape: Landscape, run: int, site: int) -> dict[str, float]:
    """One row; the site after the last stands for all of them."""
    is_all = site == len(landscape.sites)
    chosen = slice(None) if is_all else slice(site, site + 1)
    sharpness, errors = landscape.sharpness()
    numbers = {
        "loss": float(landscape.centres[run, chosen].mean()),
        "sharpness": float(sharpness[run, site]),
        "standard error": float(errors[run, site]),
        "‖∇F‖²": float(landscape.squared_gradients[run, chosen].mean()),
        "σ²": float(landscape.variances[run, chosen].mean()),
        "ε": float(landscape.distances[run, chosen].max()),
        "Γ": float(landscape.drifts[run, chosen].mean()),
        "in plane": float(landscape.views["near"].shares[run, chosen].mean()),
        "in drift plane": float(landscape.views["drift"].shares[run, chosen].mean()),
        "K": float(landscape.num_steps[run, chosen].mean()),
        "η": float(landscape.step_sizes[run]),
        "β": float(landscape.betas[run, chosen].max()),
    }
    return numbers | (_of_bound(terms_in(landscape, run)) if is_all else {})


def _of_bound(terms: Terms) -> dict[str, float]:
    return {
        "bound on Γ": sum(terms.bound.values()),
        "second line": terms.second_line["in general"],
        "second line if convex": terms.second_line["if convex"],
        "G²": terms.constants["squared_g"],
    }


def to_markdown(landscape: Landscape) -> str:
    """Render as a Markdown table with the meaning of its columns."""
    lines = [markdown_line(("Run", "Site", *HEADINGS)), markdown_line(("---", "---", *("---:" for _ in HEADINGS)))]
    for run, site, numbers in landscape_rows(landscape):
        cells = [markdown_escape(run), markdown_escape(site), *_cells(numbers)]
        lines.append(markdown_line([f"**{cell}**" if site == ALL and cell != MISSING else cell for cell in cells]))
    return "\n".join([f"**{_caption(landscape)}**", "", *lines, "", *_notes(landscape)]) + "\n"


def _cells(numbers: dict[str, float]) -> list[str]:
    cells: list[str] = []
    for name in COLUMNS:
        if name == "standard error":
            cells[-1] += f" ({numbers[name]:.2g})"
        elif name not in numbers:
            cells.append(MISSING)
        else:
            cells.append(f"{100 * numbers[name]:.1f} %" if name.startswith("in ") else f"{numbers[name]:.3g}")
    return cells


def _caption(landscape: Landscape) -> str:
    fewest, most = min(landscape.num_images), max(landscape.num_images)
    images = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f"The loss around the selected model: {landscape.loss_name} on {images} training images per site"


def _notes(landscape: Landscape) -> Sequence[str]:
    directions = landscape.rises.shape[2]
    return (
        f"Sharpness: mean rise of the loss at radius {landscape.radius:g} (in units of each filter's norm) over "
        f"{directions} random filter-normalized directions (standard error over directions).",
        "‖∇F‖²: of the site's gradient on all its training images. σ²: variance of its mini-batches' gradients. "
        "ε: largest distance to another site's gradient. Γ: drift of one further local epoch, mean over its steps of "
        "‖θ_k − θ‖².",
        "Bound on Γ: 4K²η²(mean ‖∇F‖² + ε²(N − 1)²/N²) + 2Kη² · largest σ², for plain gradient descent; K: mean steps "
        "of an epoch over sites, η: learning rate (both in landscape.csv), N: sites. The theorem is not taken as "
        "proven, and momentum or Adam is not covered by it.",
        "Its second line: G² + B²‖∇F‖² in place of mean ‖∇F_i‖², with B = 1 and the least G that fits the model and "
        "the mean of the sites' models after a further epoch. landscape.csv also has G², β and the second line that "
        "would hold if losses were convex.",
        "Path: part of a site's further local epochs that lies in the plane shown, ‖projection‖ / ‖step‖.",
        *(_plane_note(landscape, view) for view in landscape.views.values()),
    )


def _plane_note(landscape: Landscape, view: View) -> str:
    """How large a plane is and, where it is still not large enough, whose lowest loss lies outside."""
    points = len(view.axis)
    size = f"Plane {view.name}: {points} × {points} points, {view.span:.3g} from the model to each side"
    places = [*landscape.sites, "the mean over sites"]
    outside = [
        f"{label} at {', '.join(places[column] for column in np.flatnonzero(is_open))}"
        for label, is_open in zip(landscape.runs, view.is_open, strict=True)
        if is_open.any()
    ]
    if not outside:
        return f"{size}; every lowest loss lies inside."
    beyond = " (the wide plane shows where)" if view.name == "near" else ""
    return f"{size}. The lowest loss lies at its edge and falls further outside{beyond} for {'; '.join(outside)}."


def to_csv(landscape: Landscape) -> str:
    """Render as CSV: bare numbers."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = (*COLUMNS, *OF_BOUND)
    writer.writerow(["run", "site", *columns])
    for run, site, numbers in landscape_rows(landscape):
        writer.writerow([run, site, *(f"{numbers[name]:.6g}" if name in numbers else "" for name in columns)])
    return buffer.getvalue()


def write_tables(landscape: Landscape, out: Path) -> list[Path]:
    """Write `landscape.md` and `landscape.csv`."""
    contents = {out / "landscape.md": to_markdown(landscape), out / FILE: to_csv(landscape)}
    for path, content in contents.items():
        write_whole(path, content)
    return list(contents)


# ---- several seeds ----


def flatness_table(files: Sequence[Path]) -> Table:
    """Sharpness at each site, and how far the sites are apart: means over `landscape.csv` files, one of each seed."""
    values: dict[str, dict[tuple[str, str], list[float]]] = {}
    for path in files:
        for row in _read(path):
            for name in ("sharpness", *APART):
                values.setdefault(row["run"], {}).setdefault((row["site"], name), []).append(float(row[name]))
    sites = list(dict.fromkeys(site for run in values.values() for site, name in run))
    places = [*((site, "sharpness") for site in sites), *((ALL, name) for name in APART)]
    columns = [Column(heading) for heading in (*sites, *APART.values())]
    rows = [Row(run, tuple(_mean(own.get(place, [])) for place in places)) for run, own in values.items()]
    notes = (
        "Site columns: sharpness, the mean rise of the training loss at a fixed distance from the selected model.",
        "ε: the largest distance between two sites' gradients there. Γ: the drift of one further local epoch.",
        f"Mean (sample std over seeds); {len(files)} seeds." if len(files) > 1 else "One seed.",
    )
    title = "How flat the selected models are, and how far the sites are apart"
    return Table(title, tuple(columns), tuple(rows), notes)


def _read(path: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    if not rows or not {"run", "site", "sharpness", *APART} <= rows[0].keys():
        raise UsageError(f"{path} is not what harmofl landscape writes")
    return rows


def _mean(values: Sequence[float]) -> Cell:
    mean = statistics.fmean(values) if values else math.nan
    return Cell(mean, sample_std(values), digits=1 if abs(mean) >= 10 else 3)
