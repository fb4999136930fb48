"""The images of a folder, by site: listed, decoded once into the cache, split, and never all in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from harmofl.data.cache import Cache, Decoded, Entry, default_cache, digest, in_threads
from harmofl.data.classes import Classes
from harmofl.data.images import (
    ImageSet,
    Parts,
    StoredImages,
    following_their_group,
    most_needed_first,
    seed_of,
    split,
)
from harmofl.data.looks import facts_of_look
from harmofl.data.preparation import Fit, in_unit_range
from harmofl.data.problem_kinds import group_by_kind, summarize
from harmofl.data.samples import Listing, Problem, Sample
from harmofl.data.scans import Note, Scan, ScanMask, UnreadableError
from harmofl.errors import UsageError, unknown_name
from harmofl.settings import DataSettings

log = logging.getLogger(__name__)

VERSION = 5
"""Of what decoding does; another number makes every entry of the cache anew."""

MOST_MASK_VALUES = 256
UNPACKED = 12
"""How many times larger an image is in memory than in its file, roughly."""
SHOWN = 5
"""Problems, labels or patients that a message names."""

Watch = Callable[[dict[str, Any]], None]
Kind = Literal["classification", "segmentation"]
Planes = np.ndarray[Any, Any]
"""Places of planes in an entry."""


def silent(record: dict[str, Any]) -> None:
    """Watch nothing."""


class ImageFolder:
    """The sites that a folder holds."""

    def __init__(
        self,
        kind: Kind,
        layout: Callable[[Path, Path], Listing],
        data: DataSettings,
        fixed_classes: Sequence[str] = (),
        watch: Watch = silent,
        limited: Collection[str] | None = None,
    ) -> None:
        self.kind = kind
        self.data = data
        self.folder = Path(data.folder or "")
        self.cache = Cache(Path(data.cache).expanduser() if data.cache else default_cache())
        self.watch = watch
        self.fixed_classes = tuple(fixed_classes)
        self._limited_sites = limited
        with suppress(OSError):  # which matters only once something must be written
            self.cache.claim()
        listing = layout(self.folder, self.cache.folder / "listings" / digest(str(self.folder.resolve()), kind))
        self.problems = [problem for problem in listing.problems if not problem.site or self._counts(problem.site)]
        self.samples = self._by_site(listing.samples)
        self._listed = {site: len(samples) for site, samples in self.samples.items()}
        self._entries: dict[str, Entry | None] = {}
        self._fingerprints: dict[str, dict[str, str]] = {}
        self._classes: Classes | None = None

    # --- what there is -----------------------------------------------------------------------------------------

    def _by_site(self, samples: Sequence[Sample]) -> dict[str, list[Sample]]:
        found: dict[str, list[Sample]] = {}
        for sample in samples:
            found.setdefault(sample.site, []).append(sample)
        wanted = self.data.sites
        held_out = self.data.hold_out_site
        for site in [*(wanted or ()), *([held_out] if held_out else ())]:
            if site not in found:
                raise unknown_name("site", site, found)
        counting = [site for site in sorted(found) if self._counts(site)]
        return {site: self._limited(site, found[site], self._limit(site)) for site in counting}

    def _counts(self, site: str) -> bool:
        """Whether a site is looked at, to train on or to be held out."""
        return not self.data.sites or site in self.data.sites or site == self.data.hold_out_site

    def _limited(self, site: str, samples: list[Sample], limit: int) -> list[Sample]:
        """In classification a sample is one image, so that what the limit leaves out need not be decoded."""
        if self.kind != "classification" or not limit or len(samples) <= limit:
            return samples
        return [samples[place] for place in drawn(len(samples), limit, self.data.seed, site).tolist()]

    def _limit(self, site: str) -> int:
        """The limit is for those who train; a hospital that takes no part is scored on everything."""
        held_out = self.data.hold_out_site
        trains = site != held_out if self._limited_sites is None else site in self._limited_sites
        return self.data.limit if trains else 0

    @property
    def sites(self) -> list[str]:
        """The sites that take part."""
        return [site for site in self.samples if site != self.data.hold_out_site]

    def found(self) -> dict[str, Any]:
        """Settings that the data decide: sites, channels and classes, and how to recognize the same data again."""
        return {
            "sites": self.sites,
            "channels": self._channels(),
            "classes": list(self.classes.names),
            "fingerprints": [self.fingerprint(site) for site in self.sites],
            "annotations": [self.annotations(site) for site in self.samples],
        }

    def fingerprint(self, site: str, trained_as: str | None = None) -> str:
        """A short name for a site's images and how they are split; it tells nothing about them.

        `trained_as`: what it would be if the site, which takes no part, had trained under that name.
        """
        data, prints, samples, limit = self.data, self.fingerprints(site), self.samples[site], self._limit(site)
        if trained_as is not None:
            samples, limit = self._limited(trained_as, samples, data.limit), data.limit
        groups = self._groups(samples)
        files = [[prints[s.image], group, s.split] for s, group in zip(samples, groups, strict=True)]
        return digest(files, data.seed, limit, data.split_by, data.slices, data.size, self._resizes)

    def annotations(self, site: str) -> str:
        """A short name for what a site's images are said to show: their masks or labels."""
        prints = self.fingerprints(site)
        # With the images, which only their owner has: else the labels of a few could be found by trying all.
        return digest([[prints[s.image], s.label, prints.get(s.mask, "")] for s in self.samples[site]])

    @property
    def classes(self) -> Classes:
        """The classes of all sites together."""
        if self._classes is None:
            self._classes = self._find_classes()
        return self._classes

    def _find_classes(self) -> Classes:
        named = self.data.classes or (list(self.fixed_classes) or None)
        if self.kind == "classification":
            labels = {sample.label for samples in self.samples.values() for sample in samples}
            return Classes.of_labels(labels, named)
        masks = [set(values) for site in self.samples if (entry := self.entry(site)) for values in entry.values]
        return Classes.of_masks(masks, named, binary=bool(self.fixed_classes))

    def _channels(self) -> int:
        per_plane = {site: entry.planes.shape[1] for site in self.samples if (entry := self.entry(site))}
        if len(set(per_plane.values())) > 1:
            counts = ", ".join(f"{site} {count}" for site, count in per_plane.items())
            hint = "data.color = 'rgb' or 'grey' makes them alike"
            raise UsageError(f"the sites' images differ in their number of channels ({counts}): {hint}")
        channels = next(iter(per_plane.values()), 0) * (2 * self.data.neighbours + 1)
        if self.data.channels not in (None, channels):
            raise UsageError(f"data.channels = {self.data.channels}: the images give {channels}")
        return channels

    # --- decoding ----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Decode what is not in the cache yet; refuse data on which training would fail."""
        self.inspect()
        self.refuse_if_broken()
        self.warn_of_other_grids()

    def inspect(self) -> None:
        """Look at everything, and note every problem on which training would fail."""
        self.inspect_images()
        for samples in self.samples.values():
            if self.data.split_by == "patient":
                self.problems += patients_on_two_sides(samples)
        if not self.sites:
            self.problems.append(Problem("", "no site is left to train on"))
        for site in self.sites:
            whole = self.entry(site) is not None and len(self.samples[site]) == self._listed[site]
            if whole:  # else what it lacks may be what could not be read
                self._try_to_split(site)

    def inspect_images(self) -> None:
        """Decode every image and mask that is not in the cache yet, and note those that cannot be used."""
        for site in self.samples:
            self.entry(site)
        for site, samples in self.samples.items():
            self.problems += self._unknown_classes(site, samples)

    def _unknown_classes(self, site: str, samples: Sequence[Sample]) -> Iterator[Problem]:
        allowed = ", ".join(self.classes.names)
        entry = self.entry(site)
        for number, sample in enumerate(samples):
            if self.kind == "classification" and self.classes.index(sample.label) < 0:
                yield Problem(sample.image, f"label {sample.label!r} is none of the classes ({allowed})")
            elif self.kind == "segmentation" and entry and (unknown := self.classes.unknown(entry.values[number])):
                values = ", ".join(map(str, unknown[:SHOWN]))
                yield Problem(sample.mask, f"label {values} is none of the classes ({allowed})")

    def _try_to_split(self, site: str) -> None:
        try:
            train, _, _ = self.parts(site)
        except UsageError as error:
            self.problems.append(Problem("", str(error)))
            return
        if len(train) < 2:
            self.problems.append(Problem("", f"{site}: {len(train)} training image; it takes 2 or more"))

    def refuse_if_broken(self) -> None:
        """Raise if there is any problem that training would fail on."""
        fatal = sorted({problem for problem in self.problems if problem.fatal})
        if fatal:
            count = f"{len(fatal)} problem{'s' if len(fatal) > 1 else ''}"
            listed = summarize(fatal, SHOWN)
            raise UsageError(f"{self.folder}: {count}: {listed} (`harmofl data check` says more)")

    def notes(self, site: str) -> Iterator[tuple[Note, Problem]]:
        """What a careful owner would want to know about a site's files, each with its remark."""
        entry = self.entry(site)
        for sample, notes in zip(self.samples[site], entry.notes if entry else (), strict=True):
            for note in notes:
                of_pair = f" (its image: {sample.image})" if note.about == "grid" else ""
                file = sample.image if note.about == "image" else sample.mask
                yield note, Problem(file, f"{note.text}{of_pair}", fatal=False, site=site)

    def warn_of_other_grids(self) -> None:
        """Warn of masks that may not lie on their images: nothing else would show it."""
        remarks = [remark for site in self.samples for note, remark in self.notes(site) if note.about == "grid"]
        for group in group_by_kind(remarks):
            others = len(group.problems) - 1
            log.warning("%s%s", group.problems[0], f" (and {others} more like it)" if others else "")

    def entry(self, site: str) -> Entry | None:
        """A site's decoded images; None if not one could be decoded."""
        if site not in self._entries:
            self._entries[site] = self._opened(site)
        return self._entries[site]

    def _opened(self, site: str) -> Entry | None:
        prints = self.fingerprints(site)
        samples = self.samples[site] = list(self._with_content(site, prints))
        entry = self.cache.open(self._key(samples, prints)) if samples else None
        if entry is None:
            entry = self._decoded(site, samples, prints)
        self.watch({"phase": "data", "site": site, "done": len(samples), "total": len(samples), "doing": "decoded"})
        return entry

    def _with_content(self, site: str, prints: dict[str, str]) -> Iterator[Sample]:
        """The samples whose files can be opened at all."""
        for sample in self.samples[site]:
            closed = [path for path in (sample.image, sample.mask) if path and not prints[path]]
            self.problems += (Problem(path, "cannot be opened") for path in closed)
            if not closed:
                yield sample

    def _decoded(self, site: str, samples: list[Sample], prints: dict[str, str]) -> Entry | None:
        """Decode all samples; those that cannot be are reported, and no longer among the site's."""
        good: list[Sample] = []
        decoded = self._good_ones(site, samples, good)
        first = next(decoded, None)
        if first is None:
            self.problems.append(Problem(site, "not one of this site's images could be read"))
            return None

        def from_first() -> Iterator[Decoded]:
            yield first
            yield from decoded

        entry = self.cache.make(lambda: self._key(good, prints), from_first())
        self.samples[site] = good
        return entry

    def _good_ones(self, site: str, samples: list[Sample], good: list[Sample]) -> Iterator[Decoded]:
        from harmofl.data.formats import load_libraries

        load_libraries()
        channels = 0
        results = in_threads(self._attempt, samples, cost=self._cost)
        for number, (sample, result) in enumerate(zip(samples, results, strict=True)):
            self.watch({"phase": "data", "site": site, "done": number, "total": len(samples), "doing": "decoding"})
            if isinstance(result, Problem):
                self.problems.append(result)
                continue
            channels = channels or result.planes.shape[1]
            if result.planes.shape[1] != channels:
                hint = "data.color = 'rgb' or 'grey' makes them alike"
                message = f"{result.planes.shape[1]} channels, where {good[0].image} has {channels}: {hint}"
                self.problems.append(Problem(sample.image, message))
                continue
            good.append(sample)
            yield result

    def _cost(self, sample: Sample) -> int:
        """About how many bytes an image takes once it is unpacked, with what is made of it on the way."""
        try:
            return UNPACKED * (self.folder / sample.image).stat().st_size
        except OSError:
            return 0

    def _attempt(self, sample: Sample) -> Decoded | Problem:
        try:
            return self._decode(sample)
        except _MaskError as error:
            return Problem(sample.mask, str(error))
        except UnreadableError as error:
            return Problem(sample.image, str(error))
        except Exception as error:  # of a library that met a broken file
            return Problem(sample.image, f"cannot be read: {type(error).__name__}: {error}")

    def _decode(self, sample: Sample) -> Decoded:
        from harmofl.data.formats import read_scan

        scan = read_scan(self.folder / sample.image)
        if sample.reversed_channels:
            scan = replace(scan, pixels=scan.pixels[:, ::-1])
        mask = self._mask(sample, scan)
        height, width = scan.pixels.shape[-2:]
        fit = Fit(height, width, self.data.size, self._resizes)
        return Decoded(
            planes=fit.images(in_unit_range(scan, self.data)),
            masks=None if mask is None else fit.masks(mask.labels),
            tiles=fit.tiles,
            facts=facts(scan),
            values=[] if mask is None else np.unique(mask.labels).tolist(),
            notes=[*(Note("image", text) for text in scan.geometry.notes), *(mask.notes if mask else ())],
        )

    @property
    def _resizes(self) -> bool:
        return self.data.resize or self.kind == "classification"  # a label is true of the whole image only

    def _mask(self, sample: Sample, scan: Scan) -> ScanMask | None:
        from harmofl.data.formats import read_mask
        from harmofl.data.formats.alignment import OtherGridError

        if self.kind == "classification":
            return None
        try:
            read = read_mask(self.folder / sample.mask, scan, self.data.mask_grid)
        except OtherGridError as error:
            raise _MaskError(f"{error} (its image: {sample.image})") from None
        except UnreadableError as error:
            raise _MaskError(str(error)) from None
        except Exception as error:
            raise _MaskError(f"cannot be read: {type(error).__name__}: {error}") from error
        mask = read.labels
        count = len(np.unique(mask))
        if count > MOST_MASK_VALUES:
            raise _MaskError(f"{count} different values: a mask holds a few labels (is it a picture, or a JPEG?)")
        if mask.min() < 0 or mask.max() > 65535:
            raise _MaskError(f"labels from {mask.min()} to {mask.max()}: they must be from 0 to 65535")
        return replace(read, labels=mask.astype(np.uint8 if mask.max() < 256 else np.uint16))

    def _key(self, samples: Sequence[Sample], prints: dict[str, str]) -> str:
        """Named by content: the files' hashes, and the settings that change what is made of them."""
        data = self.data
        chosen = [self.kind, data.size, self._resizes, data.color, data.intensity]
        if data.mask_grid != "auto":
            chosen.append(data.mask_grid)
        files = [[prints[sample.image], prints.get(sample.mask, ""), sample.reversed_channels] for sample in samples]
        return digest(VERSION, chosen, files)

    def fingerprints(self, site: str) -> dict[str, str]:
        """The content hashes of a site's files."""
        if site not in self._fingerprints:
            samples = self.samples[site]
            paths = sorted({path for sample in samples for path in (sample.image, sample.mask) if path})
            done = 0

            def count(more: int) -> None:
                nonlocal done
                done += more
                self.watch({"phase": "data", "site": site, "done": done, "total": len(paths), "doing": "reading"})

            self._fingerprints[site] = self.cache.fingerprints(self.folder, site, paths, count)
        return self._fingerprints[site]

    # --- images of one site ------------------------------------------------------------------------------------

    def parts(self, site: str) -> Parts:
        """Train, val and test images; training images may be cut to the smallest site's number."""
        train, val, test = self._split(site)
        if self.data.site_sizes != "all" and site in self.sites:
            size = self._smallest if self.data.site_sizes == "smallest" else self.data.site_sizes
            train = train.at(stratified(train, size, seed_of(self.data.seed, site, "cut")))
        return train, val, test

    @cached_property
    def _smallest(self) -> int:
        """The training images of the site that has fewest."""
        return min(len(self._split(site)[0]) for site in self.sites)

    def _split(self, site: str) -> Parts:
        images, given = self.units(site)
        patients = self.data.split_by == "patient" and any(sample.patient for sample in self.samples[site])
        return split(images, site, "patient", self.data.seed, given, called="patient" if patients else "image")

    def named(self, site: str, part: str) -> ImageSet | None:
        """The part of a site's images that the data itself assigns to train, val or test, if there is one."""
        images, given = self.units(site)
        places = torch.from_numpy(np.array(given) == part).nonzero().flatten()
        return images.at(places) if len(places) and part != "train" else None

    def whole(self, site: str) -> ImageSet:
        """All images of a site."""
        return self.units(site)[0]

    def units(self, site: str) -> tuple[StoredImages, list[str]]:
        """All images (tiles, slices) of a site, and the part that the data assigns each to."""
        entry, samples = self.entry(site), self.samples[site]
        if entry is None:
            raise UsageError(f"{site}: not one of its images could be read")
        planes = self._chosen_planes(site, entry)
        of_sample = torch.from_numpy(entry.sample[planes])
        groups = torch.tensor(self._groups(samples), dtype=torch.int64)[of_sample]
        if self.kind == "classification":
            labels = torch.tensor([self.classes.index(sample.label) for sample in samples], dtype=torch.int64)
            classes_of = labels[of_sample]
        else:
            classes_of = torch.tensor(self.classes.table(up_to=int(max(map(max, entry.values)))), dtype=torch.int64)
        rows = torch.from_numpy(with_neighbours(entry, planes, self.data.neighbours))
        given = self._given(samples)[entry.sample[planes]].tolist()
        return StoredImages(entry.planes, entry.masks, rows, classes_of, groups), given

    def _chosen_planes(self, site: str, entry: Entry) -> Planes:
        planes = np.arange(len(entry.sample))
        if self.data.slices != "all" and self.kind == "segmentation":
            planes = planes[self._foreground_slices(entry)]
        if len(planes) == 0:
            raise UsageError(f"{site}: no slice holds anything of its mask (data.slices = {self.data.slices!r})")
        limit = self._limit(site)
        if not limit or len(planes) <= limit:
            return planes
        if (entry.facts["slices"] > 1).any():  # whole volumes, as a case is scored as a whole
            return self._some_volumes(site, entry, planes, limit)
        chosen: Planes = planes[drawn(len(planes), limit, self.data.seed, site).numpy()]
        return chosen

    def _some_volumes(self, site: str, entry: Entry, planes: Planes, limit: int) -> Planes:
        """The slices of volumes drawn at random, as many as stay within the limit, but enough to be split."""
        samples = self.samples[site]
        sizes = np.bincount(entry.sample[planes], minlength=len(samples))
        by_chance = drawn(len(samples), len(samples), self.data.seed, site, in_order=False).tolist()
        some_left = [volume for volume in by_chance if sizes[volume]]
        order, needed = most_needed_first(some_left, self._groups(samples), self._given(samples).tolist())
        fitting = max(needed, int((sizes[order].cumsum() <= limit).sum()))
        return planes[np.isin(entry.sample[planes], order[:fitting])]

    def _foreground_slices(self, entry: Entry) -> np.ndarray[Any, Any]:
        """Planes of slices of which any tile holds something; pictures always count."""
        _, slices = np.unique(np.stack([entry.sample, entry.slice]), axis=1, return_inverse=True)
        in_slice = np.bincount(slices, weights=entry.foreground)[slices]
        is_volume = entry.facts["slices"][entry.sample] > 1
        chosen: np.ndarray[Any, Any] = (in_slice > 0) | ~is_volume
        return chosen

    def _groups(self, samples: Sequence[Sample]) -> list[int]:
        """A number for each sample's patient; a sample without one is its own."""
        by_patient = self.data.split_by == "patient"
        names = [s.patient if by_patient and s.patient else f"\0{number}" for number, s in enumerate(samples)]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return [numbers[name] for name in names]

    def _given(self, samples: Sequence[Sample]) -> np.ndarray[Any, Any]:
        """The part that the data assigns each sample to, by its patient if not by itself."""
        return following_their_group(np.array([s.split for s in samples]), torch.tensor(self._groups(samples)))


def patients_on_two_sides(samples: Sequence[Sample]) -> Iterator[Problem]:
    """Patients whose images the data puts into more than one of train, val and test."""
    first: dict[str, Sample] = {}
    told = set()
    for sample in samples:
        if not (sample.patient and sample.split):
            continue
        before = first.setdefault(sample.patient, sample)
        if before.split != sample.split and sample.patient not in told:
            told.add(sample.patient)
            where = f"in {sample.split}, but {before.image} of the same patient is in {before.split}"
            hint = "data.split_by = 'image' allows that"
            yield Problem(sample.image, f"patient {sample.patient} of {sample.site} is {where} ({hint})")


class _MaskError(UnreadableError):
    """The mask is what cannot be read, not the image."""


def facts(scan: Scan) -> dict[str, float]:
    """What is worth knowing of an original."""
    slices, channels, height, width = scan.pixels.shape
    pixels = scan.pixels
    sizes = {"slices": slices, "channels": channels, "height": height, "width": width} | facts_of_look(scan)
    return sizes | {"minimum": float(pixels.min()), "mean": float(pixels.mean()), "maximum": float(pixels.max())}


def with_neighbours(entry: Entry, planes: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """For each plane itself and the same tile of the slices around it; the end slices are their own neighbours."""
    sample = entry.sample[planes]
    tiles = entry.tiles[sample]
    last = (entry.facts["slices"][sample]).astype(np.int64) - 1
    rows = []
    for offset in range(-count, count + 1):
        wanted = np.clip(entry.slice[planes] + offset, 0, last)
        rows.append(planes + (wanted - entry.slice[planes]) * tiles)
    return np.stack(rows, axis=1)


def drawn(count: int, wanted: int, seed: int, site: str, in_order: bool = True) -> Tensor:
    """Places drawn at random."""
    generator = torch.Generator().manual_seed(seed_of(seed, site, "limit"))
    places = torch.randperm(count, generator=generator)[:wanted]
    return places.sort().values if in_order else places


def stratified(images: ImageSet, wanted: int, seed: int) -> Tensor:
    """Places of so many images, drawn at random, each class in proportion."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    labels = images.labels
    if labels is None or len(images) <= wanted:
        return order[:wanted].sort().values
    ranks = torch.zeros(len(images), dtype=torch.float64)
    for label in torch.unique(labels):
        members = order[labels[order] == label]
        # The k-th of n images of a class stands at (k + ½)/n: the first places hold every class in proportion.
        ranks[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    return torch.argsort(ranks, stable=True)[:wanted].sort().values
