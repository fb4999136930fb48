"""What lies in a data folder, by site: samples, and the problems met while listing them. No image is opened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from harmofl.data.cache import Cache, digest
from harmofl.data.images import seed_of
from harmofl.data.layouts.kept import keep, recall
from harmofl.data.layouts.layout import Layout
from harmofl.data.layouts.signs import describe_missing
from harmofl.data.samples import Listing, Problem, Sample
from harmofl.errors import unknown_name
from harmofl.registry import Kind
from harmofl.settings import DataSettings


@dataclass(frozen=True)
class FolderListing:
    """The samples of every site that is looked at, whether it trains or is held out."""

    folder: Path
    samples: Mapping[str, tuple[Sample, ...]]
    """By site, in the order of names; in classification no more than the site's limit."""
    limits: Mapping[str, int]
    """The most images of a site that count; 0 stands for all."""
    problems: tuple[Problem, ...]

    def only(self, site: str) -> FolderListing:
        """The same of one site."""
        problems = tuple(problem for problem in self.problems if problem.site in ("", site))
        return FolderListing(self.folder, {site: self.samples[site]}, {site: self.limits[site]}, problems)


def list_folder(
    kind: Kind, layout: Layout, data: DataSettings, cache: Cache, limited: Collection[str] | None = None
) -> FolderListing:
    """List a folder; `limited`: the sites that data.limit is for, if they are not those that train."""
    folder = Path(data.folder or "")
    kept = cache.folder / "listings" / digest(str(folder.resolve()), kind) / "listing.jsonl"
    listing = list_layout(layout, folder, kept)
    by_site = _group_by_site(listing.samples)
    _check_names(data, by_site)
    sites = [site for site in sorted(by_site) if _is_looked_at(site, data)]
    limits = {site: _limit_of(site, data, limited) for site in sites}
    return FolderListing(
        folder=folder,
        samples={site: draw_samples(kind, by_site[site], limits[site], data.seed, site) for site in sites},
        limits=limits,
        problems=tuple(each for each in listing.problems if not each.site or _is_looked_at(each.site, data)),
    )


def list_layout(layout: Layout, folder: Path, kept: Path) -> Listing:
    """What the layout lists, or what it listed before if nothing has changed since."""
    stamp = layout.stamp(folder) if layout.stamp else None  # before listing, so that a later change is never missed
    listing = recall(kept, stamp) if stamp is not None else None
    if listing is not None:
        return listing
    listing = layout.list_samples(folder)
    if not listing.samples and not any(problem.fatal for problem in listing.problems):
        raise describe_missing(folder, layout.wanted, layout.signs)
    if stamp is not None:
        keep(kept, stamp, listing)
    return listing


def draw_samples(kind: Kind, samples: Sequence[Sample], limit: int, seed: int, site: str) -> tuple[Sample, ...]:
    """In classification a sample is one image, so that what the limit leaves out need not be decoded."""
    if kind != "classification" or not limit or len(samples) <= limit:
        return tuple(samples)
    return tuple(samples[place] for place in draw_places(len(samples), limit, seed, site).tolist())


def draw_places(count: int, wanted: int, seed: int, site: str, sort_replies: bool = True) -> Tensor:
    """So many of `count` places, drawn at random."""
    generator = torch.Generator().manual_seed(seed_of(seed, site, "limit"))
    places = torch.randperm(count, generator=generator)[:wanted]
    return places.sort().values if sort_replies else places


def _group_by_site(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    by_site: dict[str, list[Sample]] = {}
    for sample in samples:
        by_site.setdefault(sample.site, []).append(sample)
    return by_site


def _check_names(data: DataSettings, sites: Collection[str]) -> None:
    for site in [*(data.sites or ()), *([data.hold_out_site] if data.hold_out_site else ())]:
        if site not in sites:
            raise unknown_name("site", site, sites)


def _is_looked_at(site: str, data: DataSettings) -> bool:
    """Whether a site trains or is held out."""
    return not data.sites or site in data.sites or site == data.hold_out_site


def _limit_of(site: str, data: DataSettings, limited: Collection[str] | None) -> int:
    """The limit is for those who train; a hospital that takes no part is scored on everything."""
    trains = site != data.hold_out_site if limited is None else site in limited
    return data.limit if trains else 0
