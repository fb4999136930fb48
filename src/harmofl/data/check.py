"""What training would find in a folder: images per site and split, and every problem, each with its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harmofl.data.cache import Entry
from harmofl.data.classes import Classes
from harmofl.data.folder import SHOWN, ImageFolder, Watch, patients_on_two_sides, silent
from harmofl.data.images import ImageSet, StoredImages
from harmofl.data.looks import looks_in
from harmofl.data.samples import SPLITS, Problem, Sample
from harmofl.errors import UsageError
from harmofl.settings import DataSettings

if TYPE_CHECKING:
    from harmofl.tasks.task import Task

UNASSIGNED = "unassigned"
"""The split of images of a site that cannot be divided, and of which the data says nothing."""
HELD_OUT = "held out"
"""The split of a site that takes no part in training."""
FEW = 10
"""Training images with which a site hardly learns."""
ALSO = "ALSO IN"
"""How the message on a duplicate begins whose two copies are in different splits or sites."""
PLANES_AT_ONCE = 256

Range = tuple[int, int]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """What one site has in one split; sizes and intensities are those of the original files."""

    site: str
    split: str
    images: int
    """What the network sees: pictures, tiles or slices."""
    files: int
    patients: int | None
    """None where the data names no patients."""
    height: Range | None = None
    """The smallest and the largest; None, as all that follows, where there are no images."""
    width: Range | None = None
    slices: Range | None = None
    channels: Range | None = None
    intensity: tuple[float, float, float] | None = None
    """Minimum, mean over all pixels, and maximum."""
    labels: Mapping[str, int] | None = None
    """Images per class; in classification."""
    foreground: Mapping[str, float] | None = None
    """The share of pixels of each class but background; in segmentation."""
    without_foreground: float | None = None
    """The share of images that are all background; in segmentation."""


@dataclass(frozen=True)
class Check:
    """Everything that is worth knowing of a folder before training on it."""

    task: str
    folder: str
    kind: str
    sites: tuple[str, ...]
    """Those that take part in training."""
    classes: tuple[str, ...]
    channels: int | None
    """Of the network's input; None where the images do not agree on it."""
    limit: int | None
    """The most images of a site that the settings allow, if they do."""
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]
    """The fatal ones first, then images that are in two splits or sites, then the rest."""

    @property
    def ok(self) -> bool:
        """Whether training would accept the data."""
        return not any(problem.fatal for problem in self.problems)

    @property
    def images(self) -> int:
        """How many images take part in training, validation and test."""
        return sum(row.images for row in self.rows if row.split != HELD_OUT)


def check_folder(task: Task, data: DataSettings, watch: Watch = silent) -> Check:
    """Look at everything in a folder; `UsageError` if it does not hold the task's layout at all."""
    return check_images(task, task.open_folder(data, watch))


def check_images(task: Task, folder: ImageFolder) -> Check:
    """The same for a folder that is open already, which is handy if its images are to be shown too."""
    channels = _inspect(folder)
    classes = _classes(folder)
    sites = {site: _Site(folder, site, classes) for site in folder.samples}
    return Check(
        task=task.name,
        folder=str(folder.folder),
        kind=folder.kind,
        sites=tuple(folder.sites),
        classes=classes.names if classes else (),
        channels=channels,
        limit=folder.data.limit,
        rows=tuple(row for site in sites.values() for row in site.rows()),
        problems=_in_order({*folder.problems, *_remarks(folder, sites)}),
    )


def to_json(check: Check) -> dict[str, Any]:
    """Plain values for machines.

    ok: whether training would accept the data
    task, folder, kind: what was checked; kind is classification or segmentation
    sites, classes: lists of names; channels: of the network's input, or null
    limit: data.limit, the most images of a site that are drawn, or null
    images: how many take part in training, validation and test
    rows: per site and split (train, val, test, unassigned or held out) an object with the fields of `Row`;
          a pair is [smallest, largest], intensity is [minimum, mean, maximum], and null means not applicable
    problems: objects with file (may be empty), message, fatal, and site (empty where the layout does not tell it)
    """
    plain: dict[str, Any] = _with_lists({"ok": check.ok, "images": check.images} | asdict(check))
    return plain


def _with_lists(value: Any) -> Any:
    """The same with lists for tuples, as JSON would give it back."""
    if isinstance(value, dict):
        return {name: _with_lists(each) for name, each in value.items()}
    return [_with_lists(each) for each in value] if isinstance(value, list | tuple) else value


def _inspect(folder: ImageFolder) -> int | None:
    """Decode everything and note what is wrong; the channels that the network would have."""
    channels = None
    for look in (folder.inspect, folder.found):
        try:
            found = look()
        except UsageError as error:  # on classes or channels that do not go together
            folder.problems.append(Problem("", str(error)))
        else:
            channels = found["channels"] if found else None
    return channels


def _classes(folder: ImageFolder) -> Classes | None:
    try:
        return folder.classes
    except UsageError:  # already noted
        return None


class _Site:
    """One site's images, by the split that they fall into."""

    def __init__(self, folder: ImageFolder, site: str, classes: Classes | None) -> None:
        self.name = site
        self.samples = folder.samples[site]
        self.entry = folder.entry(site)
        self.classes = classes
        self.planes: dict[str, Places] = {}
        if self.entry is not None:
            self.planes = _as_trained(folder, site) or _as_said(self.entry, self.samples)

    def rows(self) -> Iterator[Row]:
        if self.entry is None:
            yield Row(self.name, UNASSIGNED, images=0, files=len(self.samples), patients=_patients(self.samples))
            return
        pixels = None
        if self.entry.masks is not None and self.classes is not None:
            pixels = _pixels_per_class(self.entry.masks, self.classes)
        for split, planes in self.planes.items():
            yield self._row(self.entry, split, planes, pixels)

    def _row(self, entry: Entry, split: str, planes: Places, pixels: NDArray[np.int64] | None) -> Row:
        files = np.unique(entry.sample[planes])
        samples = [self.samples[number] for number in files.tolist()]
        facts = {name: values[files] for name, values in entry.facts.items()}
        row = Row(self.name, split, images=len(planes), files=len(files), patients=_patients(samples))
        return Row(**vars(row) | _described(facts) | self._balance(entry, planes, pixels)) if len(planes) else row

    def _balance(self, entry: Entry, planes: Places, pixels: NDArray[np.int64] | None) -> dict[str, Any]:
        if entry.masks is None:
            return {"labels": self._labels(entry.sample[planes])}
        if self.classes is None or pixels is None:
            return {"without_foreground": float((entry.foreground[planes] == 0).mean())}
        own = pixels[planes]
        shares = own.sum(axis=0) / own.sum()
        return {
            "foreground": dict(zip(self.classes.names[1:], shares[1:].tolist(), strict=True)),
            "without_foreground": float((own[:, 1:].sum(axis=1) == 0).mean()),
        }

    def _labels(self, samples: Places) -> dict[str, int]:
        labels = np.array([sample.label for sample in self.samples])[samples]
        names, counts = np.unique(labels, return_counts=True)
        known = dict.fromkeys(self.classes.names if self.classes else (), 0)
        return known | dict(zip(names.tolist(), counts.tolist(), strict=True))

    def split_of_samples(self) -> list[str]:
        """The split of each sample; empty for one that training leaves out."""
        found = [""] * len(self.samples)
        if self.entry is not None:
            for split, planes in self.planes.items():
                for number in np.unique(self.entry.sample[planes]).tolist():
                    found[number] = split
        return found


def _as_trained(folder: ImageFolder, site: str) -> dict[str, Places] | None:
    """The planes in each split of a training; None if there could be no training."""
    try:
        if site == folder.data.hold_out_site:
            return {HELD_OUT: _planes(folder.whole(site))}
        return {split: _planes(part) for split, part in zip(SPLITS, folder.parts(site), strict=True)}
    except UsageError:  # already noted
        return None


def _as_said(entry: Entry, samples: Sequence[Sample]) -> dict[str, Places]:
    """The planes in each split that the data names."""
    said = np.array([sample.split or UNASSIGNED for sample in samples])[entry.sample]
    return {split: np.flatnonzero(said == split) for split in (*SPLITS, UNASSIGNED) if split in said}


def _planes(images: ImageSet) -> Places:
    """The plane in the middle of each image: the others are its neighbours."""
    assert isinstance(images, StoredImages)
    rows: Places = images.rows.numpy()
    return rows[:, rows.shape[1] // 2]


def _patients(samples: Sequence[Sample]) -> int | None:
    return len({sample.patient for sample in samples if sample.patient}) or None


def _described(facts: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """The sizes and intensities of some originals."""
    sizes = {
        name: (int(facts[name].min()), int(facts[name].max())) for name in ("height", "width", "slices", "channels")
    }
    pixels = facts["slices"] * facts["channels"] * facts["height"] * facts["width"]
    mean = float(np.average(facts["mean"], weights=pixels))
    return sizes | {"intensity": (float(facts["minimum"].min()), mean, float(facts["maximum"].max()))}


def _pixels_per_class(masks: NDArray[Any], classes: Classes) -> NDArray[np.int64]:
    """(P, classes): how many pixels of each class a plane's mask has; few masks are in memory at once."""
    table = np.zeros(2**16, dtype=np.uint8)  # a value beyond the classes, which is a problem, counts as background
    table[: len(classes.table())] = classes.table()
    counts = np.zeros((len(masks), len(classes.names)), dtype=np.int64)
    for start in range(0, len(masks), PLANES_AT_ONCE):
        part = slice(start, start + PLANES_AT_ONCE)
        places = table[masks[part]]
        for place in range(1, len(classes.names)):
            counts[part, place] = np.count_nonzero(places == place, axis=(1, 2))
    counts[:, 0] = masks[0].size - counts.sum(axis=1)
    return counts


# --- what does not stop a training, but its owner should know ------------------------------------------------------


def _remarks(folder: ImageFolder, sites: Mapping[str, _Site]) -> Iterator[Problem]:
    for site in sites.values():
        if folder.data.split_by == "patient":  # not looked at yet where the classes failed
            yield from patients_on_two_sides(site.samples)
        if site.entry is not None:
            yield from _about_files(site.entry, site.samples)
            yield from (remark for _, remark in folder.notes(site.name))
            yield from _about_site(site.name, site.entry, site.planes)
    if folder.data.split_by == "patient":
        yield from _named_alike(sites.values())
    yield from _unlike(folder, sites)
    yield from _duplicates(folder, sites)


def _unlike(folder: ImageFolder, sites: Mapping[str, _Site]) -> Iterator[Problem]:
    """Images that are stored in two ways which the network sees differently."""
    found = [
        (look, sample)
        for site in sites.values()
        if site.entry is not None
        for look, sample in zip(looks_in(site.entry.facts), site.samples, strict=False)
    ]
    if folder.data.intensity == "auto":
        advice = "data.intensity = 'auto' scales the two differently; 'percentile' scales all alike"
        yield from _in_two_ways("images differ in depth", advice, [(look.depth, sample) for look, sample in found])
    planes = [(look.plane, sample) for look, sample in found if look.plane]
    yield from _in_two_ways("volumes differ in the plane of their slices", "save them along one axis", planes)


def _in_two_ways(what: str, advice: str, found: Sequence[tuple[str, Sample]]) -> Iterator[Problem]:
    groups: dict[str, list[Sample]] = {}
    for name, sample in found:
        groups.setdefault(name, []).append(sample)
    if len(groups) > 1:
        named = []
        for name, samples in sorted(groups.items()):
            counts = Counter(sample.site for sample in samples)
            where = ", ".join(f"{count} of {site}" for site, count in counts.items())
            named.append(f"{name}: {where} (such as {samples[0].image})")
        yield Problem("", f"{what}: {'; '.join(named)}: {advice}", fatal=False)


def _named_alike(sites: Iterable[_Site]) -> Iterator[Problem]:
    """Patients of the same name whom different sites have on different sides: by chance, or one person."""
    places: dict[str, dict[str, str]] = {}
    for site in sites:
        for sample, split in zip(site.samples, site.split_of_samples(), strict=True):
            if sample.patient and split not in ("", UNASSIGNED):
                places.setdefault(sample.patient, {})[site.name] = split
    torn = {patient: found for patient, found in places.items() if len(set(found.values())) > 1}
    if torn:
        named = [
            f"{patient} ({', '.join(f'{split} of {site}' for site, split in found.items())})"
            for patient, found in list(torn.items())[:SHOWN]
        ]
        more = f" and {len(torn) - SHOWN} more" if len(torn) > SHOWN else ""
        advice = "if one name is one person, scores on images of people who were trained on say little"
        message = f"patients of the same name are on different sides at different sites: {'; '.join(named)}{more}"
        yield Problem("", f"{message}: {advice}", fatal=False)


def _about_files(entry: Entry, samples: Sequence[Sample]) -> Iterator[Problem]:
    facts = entry.facts
    for number in np.flatnonzero(facts["minimum"] == facts["maximum"]).tolist():
        value = facts["minimum"][number]
        yield Problem(samples[number].image, f"nothing to see: every pixel is {value:g}", fatal=False)


def _about_site(site: str, entry: Entry, planes: Mapping[str, Places]) -> Iterator[Problem]:
    if entry.masks is not None and not entry.foreground.any():
        yield Problem(site, "not one of this site's masks marks anything", fatal=False)
    count = len(planes.get("train", ()))
    if 0 < count < FEW:
        yield Problem(site, f"only {count} training images; a site hardly learns from fewer than {FEW}", fatal=False)


def _duplicates(folder: ImageFolder, sites: Mapping[str, _Site]) -> Iterator[Problem]:
    """Files with the content of one that came before."""
    first: dict[str, tuple[Sample, str]] = {}
    for site in sites.values():
        prints = folder.fingerprints(site.name)
        for sample, split in zip(site.samples, site.split_of_samples(), strict=True):
            found = prints[sample.image]
            before, its_split = first.setdefault(found, (sample, split)) if found else (sample, split)
            if before is not sample:
                yield Problem(sample.image, _alike(sample, split, before, its_split), fatal=False)


def _alike(sample: Sample, split: str, other: Sample, its_split: str) -> str:
    if sample.site == other.site and (split == its_split or not (split and its_split)):
        return f"the same image as {other.image}{_other_label(sample, other)}"
    here, there = (
        f"{where or 'no split'} of {site}" for where, site in ((split, sample.site), (its_split, other.site))
    )
    warning = "; scores on an image that was trained on say nothing" if split != its_split else ""
    label = _other_label(sample, other)
    return f"{ALSO} {there}: the same image as {other.image}, here in {here}{label}{warning}"


def _other_label(sample: Sample, other: Sample) -> str:
    return f", which is labelled {other.label} (here {sample.label})" if sample.label != other.label else ""


def _in_order(problems: set[Problem]) -> tuple[Problem, ...]:
    def rank(problem: Problem) -> tuple[Any, ...]:
        return not problem.fatal, not problem.message.startswith(ALSO), problem

    return tuple(sorted(problems, key=rank))
