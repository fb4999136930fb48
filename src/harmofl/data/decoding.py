"""From a site's files to planes in the cache, each file decoded once; what cannot be decoded is a problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harmofl.data.cache import Cache, Decoded, Entry, digest, map_in_threads
from harmofl.data.channels import join_channels
from harmofl.data.file_hashes import files_of, hash_files
from harmofl.data.looks import facts_of_look
from harmofl.data.preparation import Fit, scale_to_unit_range
from harmofl.data.resampling import facts_of_spacing
from harmofl.data.samples import Problem, Sample
from harmofl.data.scans import Note, Scan, ScanMask, UnreadableError
from harmofl.data.volume_decoding import check_is_volume, facts_of_grid, fit_volume, grid_mask, grid_volume
from harmofl.data.volumes import MOST_PLACES, choose_places
from harmofl.events import ImagesRead, ImagesReady, Watch
from harmofl.registry import Kind
from harmofl.settings import DataSettings

VERSION = 6
"""Of what decoding does; another number makes every entry of the cache anew."""
MOST_MASK_VALUES = 256
UNPACKED = 12
"""How many times larger an image is in memory than in its file, roughly."""
OF_VOLUMES = 3
"""How many times more a volume takes while it is resampled."""


@dataclass(frozen=True)
class DecodedSite:
    """A site's images as the network sees them."""

    site: str
    samples: tuple[Sample, ...]
    """Those that could be decoded, in the order of the entry."""
    prints: Mapping[str, str]
    """The content hashes of all files that were listed; empty for one that cannot be opened."""
    entry: Entry | None
    """None if not one image could be decoded."""
    problems: tuple[Problem, ...]
    is_complete: bool
    """Whether every sample that was listed could be decoded."""

    def remarks(self) -> Iterator[tuple[Note, Problem]]:
        """What a careful owner would want to know about the files, each note with the remark that it makes."""
        for sample, notes in zip(self.samples, self.entry.notes if self.entry else (), strict=True):
            for note in notes:
                its_image = f" (its image: {sample.image})" if note.about == "grid" else ""
                file = sample.image if note.about == "image" else sample.mask
                yield note, Problem(file, f"{note.text}{its_image}", fatal=False, site=self.site)


@dataclass(frozen=True)
class Recipe:
    """What is made of an image and its mask: the kind of task, and the settings that matter."""

    kind: Kind
    data: DataSettings

    @property
    def resizes(self) -> bool:
        """Whether images are scaled, not cut: a label is true of the whole image only."""
        return (self.data.resize and self.data.dimensions == 2) or self.kind == "classification"

    def key(self, samples: Sequence[Sample], prints: Mapping[str, str]) -> str:
        """The name of the entry, by content: the files' hashes, and the settings that change what is made of them."""
        data = self.data
        chosen: list[Any] = [self.kind, data.size, self.resizes, data.color, data.intensity]
        if data.mask_grid != "auto":
            chosen.append(data.mask_grid)
        if data.dimensions == 3:
            chosen += [3, data.spacing, data.input_size if self.resizes else MOST_PLACES]
        files = [_prints_of(each, prints) for each in samples]
        return digest(VERSION, chosen, files)

    def attempt(self, folder: Path, sample: Sample) -> Decoded | Problem:
        """Decode a sample, or say why it cannot be."""
        try:
            return self.decode(folder, sample)
        except _MaskError as error:
            return Problem(sample.mask, str(error))
        except UnreadableError as error:
            return Problem(sample.image, str(error))
        except Exception as error:  # of a library that met a broken file
            return Problem(sample.image, f"cannot be read: {type(error).__name__}: {error}")

    def decode(self, folder: Path, sample: Sample) -> Decoded:
        """Read an image and its mask, and bring them to the network's size."""
        from harmofl.data.formats import read_scan

        scan = join_channels([read_scan(folder / image) for image in sample.images])
        if sample.reversed_channels:
            scan = replace(scan, pixels=scan.pixels[:, ::-1])
        if self.data.dimensions == 3:
            check_is_volume(scan)
        mask = self._read_mask(folder, sample, scan) if self.kind == "segmentation" else None
        notes = [*(Note("image", text) for text in scan.geometry.notes), *(mask.notes if mask else ())]
        if self.data.dimensions == 3:
            return self._decode_volume(scan, mask, notes)
        height, width = scan.pixels.shape[-2:]
        fit = Fit(height, width, self.data.size, self.resizes)
        return Decoded(
            planes=fit.images(scale_to_unit_range(scan, self.data)),
            masks=None if mask is None else fit.masks(mask.labels),
            tiles=fit.tiles,
            facts=describe_scan(scan),
            values=[] if mask is None else np.unique(mask.labels).tolist(),
            notes=notes,
        )

    def _decode_volume(self, scan: Scan, mask: ScanMask | None, notes: list[Note]) -> Decoded:
        """A whole volume on the common grid; with a label, brought to the network's size."""
        volume = grid_volume(scan, self.data)
        facts = describe_scan(scan) | facts_of_grid(volume)
        if mask is None:
            planes = fit_volume(volume.values, self.data.input_size, self.data.spacing is not None)[None]
            return Decoded(planes=planes, masks=None, tiles=1, facts=facts, values=[], notes=notes)
        labels = grid_mask(mask.labels, scan, self.data)
        return Decoded(
            planes=volume.values,
            masks=labels,
            tiles=1,
            facts=facts | {"grid_channels": float(len(volume.values))},
            values=np.unique(mask.labels).tolist(),
            notes=notes,
            places=choose_places(labels, seed=0),  # whatever data.seed is: runs with other ones share the entry
        )

    def _read_mask(self, folder: Path, sample: Sample, scan: Scan) -> ScanMask:
        from harmofl.data.formats import read_mask
        from harmofl.data.formats.alignment import OtherGridError

        try:
            mask = read_mask(folder / sample.mask, scan, self.data.mask_grid)
        except OtherGridError as error:
            raise _MaskError(f"{error} (its image: {sample.image})") from None
        except UnreadableError as error:
            raise _MaskError(str(error)) from None
        except Exception as error:
            raise _MaskError(f"cannot be read: {type(error).__name__}: {error}") from error
        return _with_small_labels(mask)


def _prints_of(sample: Sample, prints: Mapping[str, str]) -> list[Any]:
    """What tells a sample's files from others."""
    image, *others = (prints[path] for path in sample.images)
    return [image, prints.get(sample.mask, ""), sample.reversed_channels, *others]


class _MaskError(UnreadableError):
    """The mask is what cannot be read, not the image."""


def _with_small_labels(mask: ScanMask) -> ScanMask:
    labels = mask.labels
    count = len(np.unique(labels))
    if count > MOST_MASK_VALUES:
        raise _MaskError(f"{count} different values: a mask holds a few labels (is it a picture, or a JPEG?)")
    if labels.min() < 0 or labels.max() > 65535:
        raise _MaskError(f"labels from {labels.min()} to {labels.max()}: they must be from 0 to 65535")
    return replace(mask, labels=labels.astype(np.uint8 if labels.max() < 256 else np.uint16))


def describe_scan(scan: Scan) -> dict[str, float]:
    """What is worth knowing of an original."""
    slices, channels, height, width = scan.pixels.shape
    pixels = scan.pixels
    sizes = {"slices": slices, "channels": channels, "height": height, "width": width} | facts_of_look(scan)
    values = {"minimum": float(pixels.min()), "mean": float(pixels.mean()), "maximum": float(pixels.max())}
    return sizes | values | facts_of_spacing(scan)


def how_to_match_channels(volumes: bool) -> str:
    """What to do about images that differ in their number of channels."""
    if volumes:
        return "the fourth axis of a volume holds channels; save the same ones for every patient"
    return "data.color = 'rgb' or 'grey' makes them alike"


def decode_site(
    site: str, samples: Sequence[Sample], folder: Path, recipe: Recipe, cache: Cache, watch: Watch
) -> DecodedSite:
    """A site's images, from the cache if they are there; else they are decoded into it."""
    prints = _hash_files(site, samples, folder, cache, watch)
    closed = {each: [path for path in each.files if not prints[path]] for each in samples}
    problems = [Problem(path, "cannot be opened") for paths in closed.values() for path in paths]
    readable = [each for each in samples if not closed[each]]
    entry = cache.open(recipe.key(readable, prints)) if readable else None
    if entry is None:
        work = _Work(site, readable, folder, recipe, watch)
        entry = work.fill(cache, prints)
        readable, problems = work.good, problems + work.problems
    watch(ImagesReady(site, len(readable)))
    is_complete = len(readable) == len(samples)
    return DecodedSite(site, tuple(readable), prints, entry, tuple(problems), is_complete)


def _hash_files(site: str, samples: Sequence[Sample], folder: Path, cache: Cache, watch: Watch) -> dict[str, str]:
    """The content hashes of a site's files."""
    paths = sorted({path for sample in samples for path in sample.files})
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        watch(ImagesRead(site, "reading", done, len(paths)))

    return hash_files(cache, folder, site, paths, count)


class _Work:
    """The decoding of one site, as it goes on."""

    def __init__(self, site: str, samples: Sequence[Sample], folder: Path, recipe: Recipe, watch: Watch) -> None:
        self.site, self.samples, self.folder, self.recipe, self.watch = site, samples, folder, recipe, watch
        self.good: list[Sample] = []
        self.problems: list[Problem] = []

    def fill(self, cache: Cache, prints: Mapping[str, str]) -> Entry | None:
        """Write the entry of all samples that can be decoded; None if there are none."""
        decoded = self._decode()
        first = next(decoded, None)
        if first is None:
            self.problems.append(Problem(self.site, "not one of this site's images could be read"))
            return None

        def from_first() -> Iterator[Decoded]:
            yield first
            yield from decoded

        return cache.make(lambda: self.recipe.key(self.good, prints), from_first())

    def _decode(self) -> Iterator[Decoded]:
        from harmofl.data.formats import load_libraries

        load_libraries()
        channels, total = 0, len(self.samples)
        results = map_in_threads(lambda each: self.recipe.attempt(self.folder, each), self.samples, cost=self._cost)
        for number, (sample, result) in enumerate(zip(self.samples, results, strict=True)):
            self.watch(ImagesRead(self.site, "decoding", number, total))
            if isinstance(result, Decoded):
                channels = channels or result.channels
                result = self._check_channels(sample, result, channels)
            if isinstance(result, Problem):
                self.problems.append(result)
            else:
                self.good.append(sample)
                yield result

    def _check_channels(self, sample: Sample, decoded: Decoded, channels: int) -> Decoded | Problem:
        own = decoded.channels
        if own == channels:
            return decoded
        hint = how_to_match_channels(decoded.facts["slices"] > 1)
        plural = "" if own == 1 else "s"
        return Problem(sample.image, f"{own} channel{plural}, where {self.good[0].image} has {channels}: {hint}")

    def _cost(self, sample: Sample) -> int:
        """About how many bytes an image takes once it is unpacked, with what is made of it on the way."""
        unpacked = UNPACKED * (OF_VOLUMES if self.recipe.data.dimensions == 3 else 1)
        try:
            files = [file for image in sample.images for file in files_of(self.folder / image)]
            return unpacked * sum(file.stat().st_size for file in files)
        except OSError:
            return 0
