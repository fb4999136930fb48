"""Pages of pictures: drawn, captioned and written, with the numbers behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harmofl.analysis.cases import Case, Gallery, Guess, choose_cases, dice_table, guesses
from harmofl.analysis.hospitals import (
    BEFORE,
    Chosen,
    Embedding,
    Hospitals,
    Look,
    embedding,
    harmonization,
    looks_at,
)
from harmofl.devices import threads
from harmofl.errors import RunError, UsageError
from harmofl.events import Watch, ignore
from harmofl.files import folder_name, write_whole
from harmofl.methods.layers import Band
from harmofl.reporting.appearance_figures import (
    amplitude_sheet,
    embedding_panels,
    in_words,
    percent,
    samples_sheet,
    subject,
)
from harmofl.reporting.case_figures import predictions, segmentations
from harmofl.reporting.gallery import FILE
from harmofl.reporting.style import to_png, to_svg
from harmofl.reporting.table_formats import markdown_escape, markdown_line
from harmofl.runs.finished import FinishedRun
from harmofl.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A figure, the name of its files, and what it shows."""

    name: str
    figure: Figure
    caption: str


def write_pictures(out: Path, title: str, drawn: Sequence[Drawn], numbers: Numbers, table: str = "") -> list[Path]:
    """Write every figure as PNG and SVG, `pictures.md`, and last `pictures.json`: with it the folder is complete."""
    listed = [{"name": each.name, "caption": each.caption} for each in drawn]
    parts = [f"# {title}", *(f"![{each.name}]({each.name}.png)\n\n{each.caption}" for each in drawn), table]
    files: dict[str, bytes | str] = {}
    for each in drawn:
        files |= {f"{each.name}.png": to_png(each.figure), f"{each.name}.svg": to_svg(each.figure)}
    files["pictures.md"] = "\n\n".join(part for part in parts if part).rstrip() + "\n"
    files[FILE] = json.dumps({"title": title, **numbers, "figures": listed}, indent=2) + "\n"
    try:
        for name, content in files.items():
            write_whole(out / name, content)
    except OSError as error:
        raise RunError(f"{out}: {error.strerror or error}") from error
    return [out / name for name in files]


def _markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[markdown_escape(cell) for cell in line] for line in (heading, *rows)]
    return "\n".join(map(markdown_line, [cells[0], ["---"] * len(heading), *cells[1:]]))


def _source(settings: Settings) -> Numbers:
    folder = settings.data.folder
    return {"task": settings.task, "preset": settings.preset, "data": Path(folder).name if folder else None}


# --- how images look -----------------------------------------------------------------------------------------------


def draw_appearance(
    settings: Settings, bands: Sequence[Band], out: Path, device: str = "auto", watch: Watch = ignore
) -> list[Path]:
    """Draw samples, amplitude normalization and statistics of a task's images; no training is needed."""
    with threads(settings.federation.threads):  # small tensors: more threads only wait for one another
        hospitals = Hospitals(settings)
        shared = harmonization(hospitals, bands, device, watch)
        looks = looks_at(hospitals, shared.layers, watch)
        places = embedding(looks, settings.data.seed)
    drawn = [
        _samples(hospitals, looks),
        Drawn("amplitude", amplitude_sheet(hospitals, shared, looks), _amplitude_caption(hospitals)),
        Drawn("embedding", embedding_panels(hospitals.sites, places), _embedding_caption(looks, places)),
    ]
    numbers = _source(settings) | _looks_numbers(looks) | {"probe": _probe_numbers(hospitals.sites, places)}
    return write_pictures(out, f"Images: {subject(hospitals)}", drawn, numbers, _probe_table(hospitals.sites, places))


def draw_samples(settings: Settings, out: Path, watch: Watch = ignore) -> list[Path]:
    """Draw samples of every site alone."""
    with threads(settings.federation.threads):
        hospitals = Hospitals(settings)
        looks = looks_at(hospitals, watch=watch)
    numbers = _source(settings) | _looks_numbers(looks)
    return write_pictures(out, f"Samples: {subject(hospitals)}", [_samples(hospitals, looks)], numbers)


def _samples(hospitals: Hospitals, looks: Sequence[Look]) -> Drawn:
    if hospitals.task.kind == "classification":
        what = "One image of each class at every hospital: of its images of that class, the one"
    else:
        what = "An image of every hospital, and its truth outlined: of the images with anything to find, the one"
    caption = f"{what} whose mean intensity is their median (chosen by this rule, not by hand)."
    return Drawn("samples", samples_sheet(hospitals, looks), caption)


def _amplitude_caption(hospitals: Hospitals) -> str:
    of = "the images with anything to find" if hospitals.task.kind == "segmentation" else "a hospital's images"
    grey = "" if hospitals.is_colour else " The middle channel is shown."
    return (
        f"Amplitude normalization, before and after: of {of}, the one whose mean intensity is the median; beside it "
        "its amplitudes, averaged over channels. What is shared is measured on training images and averaged over "
        "hospitals, as before round 1 of a federation: the channels' means for band dc, all amplitudes for band full. "
        "Below: each hospital's mean amplitude in units of the shared one, at the zero frequency and in rings around "
        f"it. Harmonized images are clipped to [0, 1] to be shown.{grey}"
    )


def _embedding_caption(looks: Sequence[Look], places: Embedding) -> str:
    first = next(iter(places.probes.values()))
    of_one = [look.site for look in looks if look.num_patients == 1]
    but = f" (of {', '.join(of_one)}, with a single patient: images that it has not seen)" if of_one else ""
    guessed = ", ".join(f"{in_words(name)} {percent(probe.accuracy)}" for name, probe in places.probes.items())
    return (
        "Each point is an image, described by low-level statistics (per channel: mean, standard deviation, skewness, "
        "percentiles, amplitudes in rings of the spectrum); a large mark is a hospital's mean. Above, the two "
        "principal components of the images as they are, on one scale: how much of the differences is gone. Below, "
        "those of each panel's own images: what is left, enlarged. How often a linear probe guesses the hospital of "
        f"images whose patient it has not seen{but}: {guessed}; by chance {percent(first.chance)} (mean over "
        f"hospitals, {first.folds} folds)."
    )


def _looks_numbers(looks: Sequence[Look]) -> Numbers:
    rule = "the image whose mean intensity is the median; in segmentation, of those with anything to find"
    chosen = {look.site: {name: _chosen_numbers(sample) for name, sample in _all(look).items()} for look in looks}
    return {"rule": rule, "images": {look.site: len(look.groups) for look in looks}, "chosen": chosen}


def _all(look: Look) -> Mapping[str, Chosen | None]:
    return {"example": look.example, **{name: sample for name, sample in look.samples.items() if name}}


def _chosen_numbers(sample: Chosen | None) -> Numbers | None:
    return {"name": sample.name, "mean_intensity": sample.brightness, "out_of": sample.out_of} if sample else None


def _probe_numbers(sites: Sequence[str], places: Embedding) -> Numbers:
    first = next(iter(places.probes.values()))
    each = {
        name: {"accuracy": probe.accuracy, "per_site": dict(zip(sites, probe.per_site, strict=True))}
        for name, probe in places.probes.items()
    }
    return {"chance": first.chance, "folds": first.folds, **each}


def _probe_table(sites: Sequence[str], places: Embedding) -> str:
    rows = [
        [in_words(name), *(f"{100 * part:.1f}" for part in (probe.accuracy, *probe.per_site))]
        for name, probe in places.probes.items()
    ]
    chance = places.probes[BEFORE].chance
    words = f"How often the linear probe guesses the hospital right, in percent (chance: {100 * chance:.1f})."
    return f"{_markdown_table(['images', 'mean', *sites], rows)}\n\n{words}"


# --- what runs make of them ----------------------------------------------------------------------------------------


def draw_cases(runs: Sequence[FinishedRun], out: Path, device: str = "auto", watch: Watch = ignore) -> list[Path]:
    """Draw test images of finished runs with what every method makes of them."""
    gallery = Gallery(runs, device, watch)
    draw = _draw_segmentations if gallery.task.kind == "segmentation" else _draw_predictions
    return draw(gallery, out)


def _runs_numbers(runs: Sequence[FinishedRun]) -> Numbers:
    return _source(runs[0].full_settings) | {"seeds": {run.title: run.seed for run in runs}}


CASE_RULE = "test images with anything to find, ranked by the Dice score averaged over the methods shown"


@dataclass(frozen=True)
class Page:
    """The cases of one figure: of all hospitals, or of one."""

    name: str
    title: str
    num_images: int
    cases: Sequence[Case]
    several_classes: bool
    """More than one to find, so that one can be taken for another."""

    @property
    def caption(self) -> str:
        """What the figure shows, and how it was chosen."""
        another = ", purple was found as another class" if self.several_classes else ""
        return (
            f"The best, the median and the worst of the {self.num_images} test images of {self.title} in which there "
            "is anything to find, ranked by the Dice score averaged over the methods shown, so that none of them is "
            "favoured. Each method's mask with its Dice score in percent: light blue was found, orange is a false "
            f"alarm, black was missed{another}. Methods that keep a model per hospital (such as FreshBN "
            "and FedBN) are shown with the hospital's own."
        )

    @property
    def rows(self) -> list[list[str]]:
        """The scores as lines of a table."""
        return [
            [case.word, _where(case), *(f"{100 * score:.1f}" for score in case.scores.values())] for case in self.cases
        ]


def _draw_segmentations(gallery: Gallery, out: Path) -> list[Path]:
    pages = _pages(gallery)
    drawn = [
        Drawn(page.name, segmentations(gallery, page.cases, f"Segmentations: {page.title}"), page.caption)
        for page in pages
    ]
    cases = {page.name: [_case_numbers(case) for case in page.cases] for page in pages}
    rows = [row for page in pages for row in page.rows]
    table = _markdown_table(["case", "image", *(run.title for run in gallery.runs)], rows)
    numbers = _runs_numbers(gallery.runs) | {"rule": CASE_RULE, "cases": cases}
    words = "Dice score of every method, in percent; first the cases of all hospitals, then those of each:"
    return write_pictures(out, "Segmentations beside the truth", drawn, numbers, f"{words}\n\n{table}")


def _pages(gallery: Gallery) -> list[Page]:
    """All hospitals together, then each that has a test image with anything to find."""
    scores, filled = dice_table(gallery)
    sites = [place.site for place in gallery.places]
    telling = [column for column in range(len(sites)) if filled[column]]
    if not telling:
        raise UsageError("not one test image holds anything to find: there is no case to show")
    several = len(gallery.classes) > 2
    pages = [Page("segmentations", "all hospitals", len(telling), choose_cases(gallery, scores, telling), several)]
    for number, site in enumerate(gallery.sites, start=1):
        own = [column for column in telling if sites[column] == site]
        if own:
            name = f"segmentations-{number}-{folder_name(site)}".rstrip("-")
            pages.append(Page(name, site, len(own), choose_cases(gallery, scores, own), several))
    return pages


def _where(case: Case) -> str:
    return f"{case.place.site}, {case.place.name}"


def _case_numbers(case: Case) -> Numbers:
    return {
        "case": case.word,
        "site": case.place.site,
        "test_image": case.place.number + 1,
        "name": case.place.name,
        "mean_dice": case.mean,
        "dice": dict(case.scores),
    }


def _draw_predictions(gallery: Gallery, out: Path) -> list[Path]:
    by_method = {run.title: guesses(gallery, run) for run in gallery.runs}
    caption = (
        "Of all test images, those of which each method is surest and right, least sure, and surest and wrong, by the "
        "gap between its two highest logits; with the probability that it gives its class."
    )
    drawn = [Drawn("predictions", predictions(gallery, by_method), caption)]
    each = {
        method: {kind: [_guess_numbers(guess, gallery.classes) for guess in own] for kind, own in kinds.items()}
        for method, kinds in by_method.items()
    }
    rule = "all test images, by the gap between the two highest logits"
    return write_pictures(
        out, "Classes and how sure they are", drawn, _runs_numbers(gallery.runs) | {"rule": rule, "cases": each}
    )


def _guess_numbers(guess: Guess, classes: Sequence[str]) -> Numbers:
    return {
        "site": guess.place.site,
        "test_image": guess.place.number + 1,
        "name": guess.place.name,
        "truth": classes[guess.truth],
        "probabilities": dict(zip(classes, guess.probabilities, strict=True)),
    }
