"""A sheet of sample images, one row per site, with what the data says of them drawn on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harmofl.analysis.image_names import image_name
from harmofl.data.folder import ImageFolder
from harmofl.data.images import LabelledImages, StoredImages
from harmofl.data.volumes import VolumeSet, middle_slices
from harmofl.errors import UsageError
from harmofl.labels import installed_fonts, readable, shorten, shorten_all
from harmofl.reporting.image_grid import draw_strip, image_strip
from harmofl.reporting.outlines import draw_outlines, name_outlines
from harmofl.reporting.style import INK, MUTED, PAPER, styled

if TYPE_CHECKING:
    # Imported where it is used: loading matplotlib takes longer than most commands.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from harmofl.tasks.task import Task

WIDTH = 7.6
"""Inches; with `to_png` about 1200 pixels."""
HEADING, FOOTING, LEFT, MARGIN = 0.45, 0.4, 0.95, 0.1
"""Inches above, below and beside the rows."""
LONGEST_NAME, WIDEST_NAME, NAME_SIZE, NAME_GAP = 18, 1.7, 9.5, 8
"""Of a site's name: letters and inches at most, its size, and points between it and the images."""
MOST_LETTERS = 14
FILE_NAME_SIZE, FILE_NAME_ROOM, FILE_NAME_LETTERS = 5.2, 0.12, 24
"""Of a file's name below its image: its size, inches above the next row, and letters at most."""

logger = logging.getLogger(__name__)

Places = npt.NDArray[np.int64]
Strip = npt.NDArray[np.float64]


@styled
def contact_sheet(task: Task, folder: ImageFolder, columns: int = 8) -> Figure:
    """Draw images of every site, spread over its patients, with outlines of the masks or names of the classes."""
    classes = _classes(folder)
    outlined = classes[1:] if folder.kind == "segmentation" else ()
    _warn_of_missing_letters(folder.all_sites)
    figure, all_axes = _rows(folder.all_sites, columns, FOOTING if outlined else MARGIN)
    for site, axes in all_axes.items():
        _draw_site(axes, folder, site, columns, classes)
    title = f"{task.title[:1].upper()}{task.title[1:]}: images of each site"
    top = 1 - 0.5 * HEADING / figure.get_figheight()
    figure.text(0.5, top, title, fontsize=12.5, fontweight="bold", ha="center", va="center")
    if outlined:
        name_outlines(figure, outlined, ncols=8)
    return figure


def _rows(sites: Sequence[str], columns: int, footing: float) -> tuple[Figure, dict[str, Axes]]:
    """Axes below one another, right of the sites' names; all lengths are inches."""
    from matplotlib.figure import Figure

    left = max(LEFT, MARGIN + NAME_GAP / 72 + max((_measure(_fit_name(site)) for site in sites), default=0))
    width = WIDTH - left - MARGIN
    tile = width / (columns + 0.05 * (columns - 1))  # the gaps of a strip
    pitch = 1.05 * tile + FILE_NAME_ROOM
    height = HEADING + len(sites) * pitch + footing
    figure = Figure(figsize=(WIDTH, height))
    bottoms = [height - HEADING - row * pitch - tile for row in range(len(sites))]
    places = [(left / WIDTH, bottom / height, width / WIDTH, tile / height) for bottom in bottoms]
    return figure, {site: figure.add_axes(place) for site, place in zip(sites, places, strict=True)}


def _classes(folder: ImageFolder) -> Sequence[str]:
    try:
        return folder.classes.names
    except UsageError:  # then no site can be shown, either
        return ()


def _draw_site(axes: Axes, folder: ImageFolder, site: str, columns: int, classes: Sequence[str]) -> None:
    try:
        divided = folder.divided(site).images
        images = _to_show(middle_slices(divided) if isinstance(divided, VolumeSet) else divided)
    except UsageError:  # such as: not one image can be read
        draw_strip(axes, None)
        axes.text(0.5, 0.5, "cannot be shown", transform=axes.transAxes, ha="center", va="center", color=MUTED)
        _name_site(axes, site, 0)
        return
    places = _telling(folder, site, images, columns)
    shown = images.load(torch.from_numpy(places))
    channels = 3 if shown.images.shape[1] == 3 else 1
    draw_strip(axes, _in_columns(shown.images[:, :channels], columns))
    _name_site(axes, site, len(images))
    _name_files(axes, [image_name(folder, site, divided, int(place)) for place in places], shown, columns)
    if shown.labels is None:
        width = axes.get_position().width * WIDTH * 72
        shares = shown.targets[:, None] / len(classes)  # a strip holds numbers up to 1
        masks = (torch.from_numpy(_in_columns(shares, columns)[..., 0]) * len(classes)).round().long()
        draw_outlines(axes, masks, len(classes), width)
    else:
        _draw_class_names(axes, shown, columns, classes)


def _to_show(images: StoredImages) -> StoredImages:
    """The same without neighbours; values of a mask that are none of the classes count as background."""
    middle = images.rows.shape[1] // 2
    classes_of = images.classes_of
    if images.masks is not None:
        classes_of = torch.cat([classes_of, classes_of.new_zeros(2**16 - len(classes_of))])
    return replace(images, rows=images.rows[:, middle : middle + 1], classes_of=classes_of)


# --- which images --------------------------------------------------------------------------------------------------


def _telling(folder: ImageFolder, site: str, images: StoredImages, count: int) -> Places:
    """Places of so many images: with something in their masks if there are, or one class after the other."""
    if images.labels is not None:
        return _spread(images.groups.numpy(), images.labels.numpy(), range(len(folder.classes.names)), count)
    entry = folder.decoded(site).entry
    assert entry is not None
    if entry.places is not None:  # the slice of a volume that is shown has as much of the mask as any
        return _spread(images.groups.numpy(), np.ones(len(images), dtype=np.int64), [1], count)
    has_foreground = (entry.foreground[images.rows[:, 0].numpy()] > 0).astype(np.int64)
    return _spread(images.groups.numpy(), has_foreground, [1], count)


def _spread(patients: Places, kinds: Places, preferred: Sequence[int], count: int) -> Places:
    """Places spread over the patients, and over the images of each; the preferred kinds take turns."""
    distinct = np.unique(patients)
    shares = np.array_split(distinct, min(len(distinct), count))  # of many patients, several share a place
    members = [np.flatnonzero(np.isin(patients, share)) for share in shares]
    chosen: list[int] = []
    for places, wanted in zip(members, _evenly([len(each) for each in members], count), strict=True):
        for block in np.array_split(places, wanted) if wanted else ():
            liked = block[kinds[block] == preferred[len(chosen) % len(preferred)]]
            pool = liked if len(liked) else block
            chosen.append(int(pool[len(pool) // 2]))
    return np.array(chosen)


def _evenly(available: Sequence[int], count: int) -> list[int]:
    """How many to take from each so that there are `count`, or all."""
    taken = [0] * len(available)
    while sum(taken) < min(count, sum(available)):
        open_to = [place for place, most in enumerate(available) if taken[place] < most]
        taken[min(open_to, key=taken.__getitem__)] += 1
    return taken


# --- how they look -------------------------------------------------------------------------------------------------


def _in_columns(images: Tensor, columns: int) -> Strip:
    """Lay images (N, C, H, W) side by side, and leave the columns free for which there are none."""
    blank = images.new_zeros((columns - len(images), *images.shape[1:]))
    strip = image_strip(torch.cat([images, blank]), False, "a site")
    if len(images) < columns:
        strip[:, len(images) * _pitch(strip.shape[1], images.shape[3], columns) :] = 0
    return strip


def _pitch(width: int, tile: int, columns: int) -> int:
    """From one image of a strip to the next."""
    return (width - tile) // max(1, columns - 1)


def _name_site(axes: Axes, site: str, count: int) -> None:
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "right"}
    images = f"{count:,} image{'' if count == 1 else 's'}"
    axes.annotate(_fit_name(site), (0, 0.5), (-NAME_GAP, 1), va="bottom", color=INK, fontsize=NAME_SIZE, **place)
    axes.annotate(images, (0, 0.5), (-NAME_GAP, -1), va="top", color=MUTED, fontsize=8.5, **place)


def _name_files(axes: Axes, names: Sequence[str], shown: LabelledImages, columns: int) -> None:
    tile = shown.images.shape[3]
    left, right = axes.get_xlim()
    pitch = _pitch(round(right - left), tile, columns)
    room = axes.get_position().width * WIDTH * tile / (right - left)
    for number, name in enumerate(_fit_file_names(names, room)):
        place = (number * pitch + tile / 2 - 0.5, shown.images.shape[2] - 0.5)
        below: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "top"}
        axes.annotate(name, place, (0, -1.5), fontsize=FILE_NAME_SIZE, color=MUTED, annotation_clip=False, **below)


def _fit_file_names(names: Sequence[str], room: float) -> list[str]:
    """As many letters of each name as all have room for."""
    for most in range(FILE_NAME_LETTERS, 5, -1):
        short = shorten_all(names, most)
        if all(_measure(name, FILE_NAME_SIZE) <= room for name in short):
            return short
    return shorten_all(names, 5)


def _fit_name(site: str) -> str:
    """A site's name, as much of it as has room."""
    fitting = (short for most in range(LONGEST_NAME, 4, -1) if _measure(short := shorten(site, most)) <= WIDEST_NAME)
    return next(fitting, shorten(site, 4))


def _measure(name: str, size: float = NAME_SIZE) -> float:
    """Inches that a name takes."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=list(installed_fonts()), size=size)
    return float(text_to_path.get_text_width_height_descent(name, font, ismath=False)[0]) / 72


def _warn_of_missing_letters(sites: Sequence[str]) -> None:
    """Say which names are spelled in other letters, as no font of this computer has theirs."""
    spelled = [f"{site} as {readable(site)}" for site in sites if readable(site) != site]
    if spelled:
        hint = "install a font for them, such as Noto Sans CJK, to see them as they are"
        logger.warning("no font here has the letters of some sites' names: %s; %s", "; ".join(spelled), hint)


def _draw_class_names(axes: Axes, shown: LabelledImages, columns: int, names: Sequence[str]) -> None:
    tile = shown.images.shape[3]
    left, right = axes.get_xlim()
    pitch = _pitch(round(right - left), tile, columns)
    box = {"facecolor": INK, "alpha": 0.65, "edgecolor": "none", "boxstyle": "square,pad=0.2"}
    for number, label in enumerate(shown.targets.tolist()):
        name = shorten(names[label], MOST_LETTERS) if label >= 0 else "?"
        place = (number * pitch + 0.04 * tile, 0.04 * tile)
        axes.text(*place, name, fontsize=7, va="top", ha="left", color=PAPER, bbox=box)
