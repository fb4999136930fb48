"""The page of `harmofl data compare`: hospitals side by side, and what follows for training."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harmofl.analysis.comparison import Comparison, options_of
from harmofl.analysis.hospital_surveys import surveys_of
from harmofl.analysis.hospitals import Hospitals, looks_at
from harmofl.analysis.survey import Survey
from harmofl.events import Watch, ignore
from harmofl.extras import require
from harmofl.files import write_whole
from harmofl.plugins import load_plugins, plugins_in
from harmofl.reporting.inline_svg import inline_svg
from harmofl.reporting.style import to_svg
from harmofl.reporting.templates import render
from harmofl.settings import Settings, read_toml, resolve
from harmofl.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, NUMBERS = "compare.html", "compare.json"
HEADINGS = ("Hospital", "Training images", "Patients", "Other images", "Size", "Spacing (mm)", "Classes", "Seen as")


@dataclass(frozen=True)
class Compared:
    """A comparison and the settings that its images were read with."""

    comparison: Comparison
    settings: Settings
    images_here: bool = True
    """Whether samples can be shown: over a network they cannot."""


def settings_to_compare(
    task: str | None,
    data: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings for looking at images, with no method in mind."""
    file = read_toml(config) if config else {}
    load_plugins(plugins_in(file))
    folder = {"data.folder": os.path.abspath(data)} if data else {}
    resolved, _ = resolve(task, "fedavg", preset, file, dict(settings or {}) | folder)
    return resolved


def compare_images(settings: Settings, watch: Watch = ignore) -> Compared:
    """Survey and compare all hospitals of a folder or phantom."""
    from harmofl.tasks.data_facts import open_images

    facts = open_images(settings, watch).facts
    complete = facts.complete(settings)
    surveys = surveys_of(complete, watch)
    return Compared(comparison_of(complete, surveys), complete)


def comparison_of(settings: Settings, surveys: Mapping[str, Survey]) -> Comparison:
    """Compare surveys of a task's images."""
    from harmofl import registry

    images = Path(settings.data.folder).name if settings.data.folder else settings.data.images_used
    return Comparison(settings.task, registry.tasks.find(settings.task).kind, images, surveys)


def write_comparison(out: Path, compared: Compared, watch: Watch = ignore) -> list[Path]:
    """Write the page, and last its numbers."""
    require("reports", "the page of a comparison")
    comparison = compared.comparison
    page = render(
        "comparison.html.j2",
        title="Hospitals compared",
        task=comparison.task,
        images=comparison.images,
        advice=comparison.advice,
        lead=" ".join(f"{each.title}." for each in comparison.advice[:2]),
        command=train_command(compared),
        headings=HEADINGS,
        rows=[describe_site(site, survey) for site, survey in comparison.surveys.items()],
        notes=[f"{site}: {survey.hidden}." for site, survey in comparison.surveys.items() if survey.hidden],
        plots=_plots(compared, watch),
        version=__version__,
        numbers=NUMBERS,
    )
    write_whole(out / PAGE, page)
    write_whole(out / NUMBERS, json.dumps(comparison.to_json(), indent=2) + "\n")
    return [out / PAGE, out / NUMBERS]


def train_command(compared: Compared) -> str:
    """The command that follows the advice."""
    settings = compared.settings
    options = options_of(compared.comparison.advice_for(settings.model.norm))
    command = ["train"] if compared.images_here else ["deploy", "run"]
    parts = ["harmofl", *command, "--task", settings.task, "--method", options.pop("method", "fedavg")]
    if settings.data.folder and compared.images_here:
        parts += ["--data", Path(settings.data.folder).name]
    if settings.preset != "small":
        parts += ["--preset", settings.preset]
    if settings.data.dimensions == 3:
        parts += ["--set", "data.dimensions=3"]
    for name, value in options.items():
        parts += ["--set", f"{name}={value}"]
    return shlex.join([*parts, "--out", "runs/first"])


def describe_site(site: str, survey: Survey) -> tuple[str, ...]:
    """A line of a table: one cell for each of HEADINGS."""
    seen = ""
    if survey.percentiles:
        low, middle, high = survey.percentiles[1:4]
        seen = f"{middle:.2f} ({low:.2f} to {high:.2f})"
    classes = ", ".join(f"{name}: {100 * share:.1f} %" for name, share in survey.balance.items())
    numbers = (survey.images, survey.patients, survey.others)
    return site, *map(str, numbers), lengths(survey.size), lengths(survey.spacing), classes or "–", seen or "–"


def lengths(values: Sequence[float] | None) -> str:
    """Lengths along axes, such as 24 × 320 × 320."""
    return " × ".join(f"{value:.4g}" for value in values) if values else "–"


def _plots(compared: Compared, watch: Watch) -> list[dict[str, Any]]:
    from harmofl.reporting import survey_figures

    comparison, plots = compared.comparison, []
    if compared.images_here and compared.settings.data.dimensions == 2:
        plots.append(_plot("samples", _samples(compared.settings, watch), SAMPLES, narrow=False))
    if any(survey.histogram for survey in comparison.surveys.values()):
        plots.append(_plot("histograms", survey_figures.histograms(comparison), HISTOGRAMS))
        plots.append(_plot("spectra", survey_figures.spectra(comparison), SPECTRA))
    if comparison.before and comparison.after:
        figure = survey_figures.probes(list(comparison.compared), comparison.before, comparison.after)
        plots.append(_plot("probes", figure, PROBES))
    return plots


SAMPLES = "Of each hospital's images (in segmentation: those with anything to find), the one of median mean intensity."
HISTOGRAMS = (
    "How often each intensity occurs in training images, after scaling to [0, 1]. “Seen as” above: the median, and "
    "from the 10th to the 90th percentile."
)
SPECTRA = (
    "Mean amplitudes of each hospital's training images in rings of the spectrum, compared with the mean over "
    "hospitals. Left: large structures; right: sharpness and noise."
)
PROBES = (
    "A linear discriminant of simple numbers about an image (mean, spread, percentiles, rings of the spectrum) guesses "
    "the hospital. It is computed from half of each hospital's patients and tried on the other half, by their means "
    "and covariances alone."
)


def _samples(settings: Settings, watch: Watch) -> Figure:
    from harmofl.reporting.appearance_figures import samples_sheet

    hospitals = Hospitals(settings)
    return samples_sheet(hospitals, looks_at(hospitals, watch=watch))


def _plot(name: str, figure: Figure, caption: str, narrow: bool = True) -> dict[str, Any]:
    return {"svg": inline_svg(to_svg(figure), name, alt=caption), "caption": caption, "narrow": narrow}
