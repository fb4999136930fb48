"""Pictures of the privacy study, and its short page, made from `privacy.json` and `images.npz` alone."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harmofl.files import write_whole
from harmofl.reporting.axes import legend_below
from harmofl.reporting.image_grid import image_grid
from harmofl.reporting.style import MUTED, line_style, styled, write_figures

if TYPE_CHECKING:
    # Imported where it is used: loading matplotlib takes longer than most commands.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]
Pictures = Mapping[str, npt.NDArray[np.uint8]]

WAYS = ("truth", "without", "start", "penalty", "held", "own", "its input", "HarmoFL", "its amplitude", "amplitude")
"""The columns: the image, what was found without and with an amplitude; then HarmoFL's input, and what was found; then
the same of the paper's own attack, on amplitudes."""
RESOLUTIONS = {"privacy-inversion": 120, "privacy-retrieval": 100}
"""Dots per inch of pictures that hold many images."""
LABEL = 14
"""Letters in a line of a row's label."""
FRAMES = {"whole": "Whole frame", "margin": "Black margin"}


def write_privacy_pages(out: Path) -> None:
    """Write every picture (PNG and SVG) and `privacy.md` of a study's folder."""
    study: Record = json.loads((out / "privacy.json").read_text(encoding="utf-8"))
    with np.load(out / "images.npz") as file:
        pictures = {name: file[name] for name in file.files}
    figures = {
        "privacy-inversion": inversion_grid(pictures, study["colour"]),
        "privacy-retrieval": retrieval_grid(pictures, study["colour"]),
        "privacy-similarity": similarity_by_number(study["phase_retrieval"]),
    }
    for name, figure in figures.items():
        write_figures({name: figure}, out, dpi=RESOLUTIONS.get(name, 160))
    write_whole(out / "privacy.md", in_words(study))


def inversion_grid(pictures: Pictures, colour: bool = True) -> Figure:
    """Draw the images attacked by gradient inversion beside what was found: a row per network and update."""
    rows: dict[str, dict[str, Any]] = {}
    for name, images in pictures.items():
        kind, *place = name.split("/")
        if kind == "inversion":
            network, case, way = place
            label = f"{network}:\n{textwrap.fill(case, LABEL)}"
            rows.setdefault(label, {})[way] = images[:1] / 255.0
    ordered = {name: {way: row[way] for way in WAYS if way in row} for name, row in rows.items()}
    return image_grid(ordered, gray=not colour)


def retrieval_grid(pictures: Pictures, colour: bool = True) -> Figure:
    """Draw what phase retrieval found beside the nearest true image, as the number of averaged images grows."""
    rows: dict[str, dict[str, Any]] = {}
    for name, images in pictures.items():
        kind, *place = name.split("/")
        if kind == "retrieval":
            frame, band, count = place
            rows.setdefault(f"{frame},\n{_band_name(band)}", {})[f"n = {count}"] = images / 255.0
    return image_grid(rows, gray=not colour, title="Nearest of n true images, and what was found")


@styled
def similarity_by_number(records: Sequence[Record]) -> Figure:
    """Draw the reconstructions' SSIM against the number of averaged images, with chance behind: a panel per band."""
    from matplotlib.figure import Figure

    frames, bands = (list(dict.fromkeys(record[name] for record in records)) for name in ("frame", "band"))
    figure = Figure(figsize=(2.7 * len(bands) + 0.5, 2.6 * len(frames) + 0.6), layout="constrained")
    all_axes = figure.subplots(len(frames), len(bands), squeeze=False, sharex=True, sharey=True)
    for row, frame in enumerate(frames):
        for column, band in enumerate(bands):
            axes = all_axes[row, column]
            _draw_similarity(axes, [r for r in records if (r["frame"], r["band"]) == (frame, band)])
            axes.set_title(f"{FRAMES.get(frame, frame)},\n{_band_name(band)}", fontsize=11, pad=6)
    for axes in all_axes[-1]:
        axes.set_xlabel("images in the average")
    for axes in all_axes[:, 0]:
        axes.set_ylabel("SSIM to the nearest")
    legend_below(figure, all_axes[0, 0])
    return figure


def _draw_similarity(axes: Axes, records: Sequence[Record]) -> None:
    counts = [record["images"] for record in records]
    low, high, reconstructed = (
        [record[name] for record in records] for name in ("chance_ssim", "chance_ssim_upper", "ssim")
    )
    axes.fill_between(counts, low, high, color=MUTED, alpha=0.3, linewidth=0, label="chance: mean to 95 % quantile")
    axes.plot(counts, reconstructed, label="reconstruction", **line_style(0))
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])


def _band_name(band: Any) -> str:
    return f"band {band}" if band in ("full", "dc", "none") else f"radius {band}"


def in_words(study: Record) -> str:
    """The page of one study."""
    shape = "×".join(map(str, study["image_shape"]))
    origin = "synthetic images" if study["synthetic"] else "images"
    return "\n".join(
        [
            f"# What could be learned from what is shared: {study['task']}",
            "",
            f"Training images of {study['site']} ({origin}, {shape}), {study['network']}, seed {study['seed']}; "
            f"{study['seconds']:.0f} seconds.",
            "",
            "## Gradient inversion",
            "",
            *_inversion_table(study),
            "",
            *_of_the_run(study),
            _chance_of_one(study["gradient_inversion_chance"]),
            "",
            *_amplitude_table(study.get("amplitude_inversion", ())),
            "![Gradient inversion](privacy-inversion.png)",
            "",
            "## Phase retrieval",
            "",
            *_retrieval_table(study["phase_retrieval"]),
            "",
            *_minima(study),
            "",
            "![Similarity by number](privacy-similarity.png)",
            "",
            "![Phase retrieval](privacy-retrieval.png)",
            "",
        ]
    )


def _inversion_table(study: Record) -> list[str]:
    records = study["gradient_inversion"]
    ways = list(dict.fromkeys(record["way"] for record in records))
    cells = {(r["network"], r["case"], r["way"]): f"{r['psnr']:.1f} / {r['ssim']:.2f}" for r in records}
    lines = ["PSNR in dB / SSIM, means over the images attacked.", ""]
    lines += [f"| network | what was sent | {' | '.join(ways)} |", "|---|---|" + "--:|" * len(ways)]
    for network, case in dict.fromkeys((r["network"], r["case"]) for r in records):
        values = [cells.get((network, case, way), "") for way in ways]
        lines.append(f"| {network} | {case} | {' | '.join(values)} |")
    return lines


def _amplitude_table(records: Sequence[Record]) -> list[str]:
    """The paper's own attack, in studies that made it."""
    if not records:
        return []
    lines = ["The paper's own attack, on amplitudes given to the network as images; PSNR in dB / SSIM.", ""]
    lines += ["| network | found, against the image | found, against its amplitude |", "|---|--:|--:|"]
    for record in records:
        scores = [record["against the image"], record["against the amplitude"]]
        cells = [f"{score['psnr']:.1f} / {score['ssim']:.2f}" for score in scores]
        lines.append(f"| {record['network']} | {' | '.join(cells)} |")
    return [*lines, ""]


def _of_the_run(study: Record) -> list[str]:
    """Which method made the trained network, if the study says so."""
    if "method" not in study:
        return []
    band = f" with {_band_name(study['band'])}" if study["band"] is not None else ""
    attacked = (
        ": in all its columns but HarmoFL the run's own harmonizer stands before it, as where it was trained, and the "
        "score is against the harmonized image (what needs no attack, below, is of images as they are)"
        if study["harmonized"]
        else ""
    )
    return [f"The trained network is of a run of {study['method']}{band}{attacked}.", ""]


def _chance_of_one(chance: Record) -> str:
    said = [f"{name} {values['psnr']:.1f} / {values['ssim']:.2f}" for name, values in chance.items()]
    return f"What needs no attack, for comparison: {', '.join(said)}."


def _retrieval_table(records: Sequence[Record]) -> list[str]:
    lines = ["| images in | band | averaged | PSNR | SSIM | chance: mean SSIM | its 95 % quantile | flat image: SSIM |"]
    lines += ["|---|---|--:|--:|--:|--:|--:|--:|"]
    for r in records:
        numbers = [r["ssim"], r["chance_ssim"], r["chance_ssim_upper"], r["flat_ssim"]]
        ssims = " | ".join(f"{value:.3f}" for value in numbers)
        lines.append(f"| {r['frame']} frame | {r['band']} | {r['images']} | {r['psnr']:.1f} | {ssims} |")
    return lines


def _minima(study: Record) -> list[str]:
    lines = [
        "Fewest averaged images from which on the mean SSIM of reconstructions is not above the 95 % quantile of what "
        "single other images score (it may still be above their mean):",
        "",
    ]
    for place, fewest in study["minimum"].items():
        largest = max(record["images"] for record in study["phase_retrieval"])
        lines.append(f"- {place}: {fewest if fewest is not None else f'more than {largest}'}")
    return lines
