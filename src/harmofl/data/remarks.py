"""What does not stop a training, but the images' owner should know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from harmofl.data.cache import Entry
from harmofl.data.checked_site import UNASSIGNED, CheckedSite, Row
from harmofl.data.folder import ImageFolder
from harmofl.data.inspection import SHOWN
from harmofl.data.looks import looks_in
from harmofl.data.samples import Problem, Sample

FEW = 10
"""Training images with which a site hardly learns."""
ALSO = "ALSO IN"
"""How the message on a duplicate begins whose two copies are in different splits or sites."""


def remarks_on(folder: ImageFolder, sites: Mapping[str, CheckedSite]) -> Iterator[Problem]:
    """Everything that is worth a remark, of files, of sites and between sites."""
    for site in sites.values():
        if site.entry is not None:
            yield from _about_files(site.entry, site.samples)
            yield from (remark for _, remark in folder.decoded(site.name).remarks())
            yield from _about_site(site.name, site.entry, site.rows)
            if folder.data.dimensions == 2 and not folder.recipe.resizes:
                yield from _too_small(site.name, site.entry, folder.data.size)
    if folder.data.split_by == "patient":
        yield from _named_alike(sites.values())
    yield from _unlike(folder, sites)
    yield from _duplicates(sites)


def _unlike(folder: ImageFolder, sites: Mapping[str, CheckedSite]) -> Iterator[Problem]:
    """Images that are stored in two ways which the network sees differently."""
    looks = [
        (look, sample)
        for site in sites.values()
        if site.entry is not None
        for look, sample in zip(looks_in(site.entry.facts), site.samples, strict=False)
    ]
    if folder.data.intensity == "auto":
        advice = "data.intensity = 'auto' scales the two differently; 'percentile' scales all alike"
        yield from _in_two_ways("images differ in depth", advice, [(look.depth, sample) for look, sample in looks])
    if folder.data.dimensions == 3:  # volumes are turned to common axes, however their slices lie
        return
    views = [(look.view, sample) for look, sample in looks if look.view]
    yield from _in_two_ways("volumes differ in the plane of their slices", "save them along one axis", views)


def _in_two_ways(what: str, advice: str, ways: Sequence[tuple[str, Sample]]) -> Iterator[Problem]:
    groups: dict[str, list[Sample]] = {}
    for name, sample in ways:
        groups.setdefault(name, []).append(sample)
    if len(groups) > 1:
        named = []
        for name, samples in sorted(groups.items()):
            counts = Counter(sample.site for sample in samples)
            where = ", ".join(f"{count} of {site}" for site, count in counts.items())
            named.append(f"{name}: {where} (such as {samples[0].image})")
        yield Problem("", f"{what}: {'; '.join(named)}: {advice}", fatal=False)


def _named_alike(sites: Iterable[CheckedSite]) -> Iterator[Problem]:
    """Patients of the same name whom different sites have on different sides: by chance, or one person."""
    places: dict[str, dict[str, str]] = {}
    for site in sites:
        for sample, split in zip(site.samples, site.split_of_samples(), strict=True):
            if sample.patient and split not in ("", UNASSIGNED):
                places.setdefault(sample.patient, {})[site.name] = split
    torn = {patient: splits for patient, splits in places.items() if len(set(splits.values())) > 1}
    if torn:
        named = [
            f"{patient} ({', '.join(f'{split} of {site}' for site, split in splits.items())})"
            for patient, splits in list(torn.items())[:SHOWN]
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


def _too_small(site: str, entry: Entry, size: int) -> Iterator[Problem]:
    """Images that do not fill the network's input."""
    heights, widths = entry.facts["height"], entry.facts["width"]
    small = np.flatnonzero(np.minimum(heights, widths) < size)
    if len(small):
        smallest = small[np.argmin((heights * widths)[small])]
        named = f"{len(small)} of {len(heights)} images are smaller than data.size = {size}"
        found = f"the smallest is {heights[smallest]:.0f} × {widths[smallest]:.0f}"
        advice = "mirrored at their ends to fill it; a smaller data.size, or data.resize = true, avoids that"
        yield Problem(site, f"{named} ({found}): {advice}", fatal=False)


def _about_site(site: str, entry: Entry, rows: Sequence[Row]) -> Iterator[Problem]:
    by_split = {row.split: row for row in rows}
    train, val = (by_split[split].images if split in by_split else 0 for split in ("train", "val"))
    if 0 < train < FEW:
        yield Problem(site, f"only {train} training images; a site hardly learns from fewer than {FEW}", fatal=False)
    if 0 < train < val:
        yield Problem(site, f"more validation images ({val}) than training images ({train})", fatal=False)
    if entry.masks is not None and not entry.foreground.any():
        yield Problem(site, "not one of this site's masks marks anything", fatal=False)
        return
    for row in rows:
        yield from _about_split(row)


def _about_split(row: Row) -> Iterator[Problem]:
    """A split that holds one class only: nothing can be learned, selected or scored by it."""
    if row.without_foreground == 1:
        yield Problem(row.site, f"not one of its {row.split} masks marks anything", fatal=False)
    held = [name for name, count in (row.labels or {}).items() if count]
    if row.labels and len(row.labels) > 1 and len(held) == 1 and row.images > 1:
        yield Problem(row.site, f"all {row.images} {row.split} images are of one class, {held[0]}", fatal=False)


def _duplicates(sites: Mapping[str, CheckedSite]) -> Iterator[Problem]:
    """Files with the content of one that came before."""
    first: dict[str, tuple[Sample, str]] = {}
    for site in sites.values():
        for sample, split in zip(site.samples, site.split_of_samples(), strict=True):
            content = site.prints[sample.image]
            before, its_split = first.setdefault(content, (sample, split)) if content else (sample, split)
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
