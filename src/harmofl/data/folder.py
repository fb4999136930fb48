"""The images of a folder, by site, for everyone who trains on them, scores or shows them; never all in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from harmofl.data.cache import Cache, chosen_cache
from harmofl.data.classes import Classes
from harmofl.data.decoding import DecodedSite, Recipe, decode_site, how_to_match_channels
from harmofl.data.division import DividedSite, cut_training, divide_site
from harmofl.data.facts import DataFacts
from harmofl.data.fingerprints import fingerprint_annotations, fingerprint_choice, fingerprint_images
from harmofl.data.images import ImageSet, Parts
from harmofl.data.layouts.layout import Layout
from harmofl.data.listing import FolderListing, draw_samples, list_folder
from harmofl.data.looks import list_depths_and_views, looks_in
from harmofl.errors import UsageError
from harmofl.events import Watch, ignore
from harmofl.registry import Kind
from harmofl.settings import DataSettings


@dataclass(frozen=True)
class ImageFolder:
    """A listing, what its images are decoded to and how they are divided; a site is decoded when first asked for."""

    listing: FolderListing
    recipe: Recipe
    cache: Cache
    fixed_classes: tuple[str, ...] = ()
    """Of the task; empty: they are found in the data."""
    watch: Watch = ignore

    @property
    def kind(self) -> Kind:
        """What the images are for."""
        return self.recipe.kind

    @property
    def data(self) -> DataSettings:
        """The settings that it was opened with."""
        return self.recipe.data

    @property
    def all_sites(self) -> list[str]:
        """The sites that take part, and the one that is held out."""
        return list(self.listing.samples)

    @property
    def sites(self) -> list[str]:
        """The sites that take part."""
        return [site for site in self.all_sites if site != self.data.hold_out_site]

    def only(self, site: str) -> ImageFolder:
        """The images of one site, as if no other had been listed."""
        data = self.data.model_copy(update={"sites": [site], "hold_out_site": None})
        return replace(self, listing=self.listing.only(site), recipe=replace(self.recipe, data=data))

    def decoded(self, site: str) -> DecodedSite:
        """A site's decoded images."""
        if site not in self._decoded:
            listing = self.listing
            self._decoded[site] = decode_site(
                site, listing.samples[site], listing.folder, self.recipe, self.cache, self.watch
            )
        return self._decoded[site]

    @cached_property
    def _decoded(self) -> dict[str, DecodedSite]:
        """What was decoded before: the same value, however often it is asked for."""
        return {}

    @cached_property
    def classes(self) -> Classes:
        """The classes of all sites together."""
        named = self.data.classes or (list(self.fixed_classes) or None)
        if self.kind == "classification":
            labels = {sample.label for samples in self.listing.samples.values() for sample in samples}
            return Classes.of_labels(labels, named)
        entries = [self.decoded(site).entry for site in self.all_sites]
        masks = [set(values) for entry in entries if entry for values in entry.values]
        return Classes.of_masks(masks, named, binary=bool(self.fixed_classes))

    @cached_property
    def channels(self) -> int:
        """Of the network's input."""
        entries = {site: self.decoded(site).entry for site in self.all_sites}
        per_plane = {site: entry.channels for site, entry in entries.items() if entry}
        if len(set(per_plane.values())) > 1:
            counts = ", ".join(f"{site} {count}" for site, count in per_plane.items())
            hint = how_to_match_channels(any((entry.facts["slices"] > 1).any() for entry in entries.values() if entry))
            raise UsageError(f"the sites' images differ in their number of channels ({counts}): {hint}")
        channels = next(iter(per_plane.values()), 0) * (2 * self.data.neighbours + 1)
        if self.data.channels not in (None, channels):
            raise UsageError(f"data.channels = {self.data.channels}: the images give {channels}")
        return channels

    def facts(self) -> DataFacts:
        """What was found: sites, channels and classes, and how to recognize the same data again."""
        entries = [self.decoded(site).entry for site in self.sites]
        depths, views = list_depths_and_views(looks_in(entry.facts) for entry in entries if entry)
        return DataFacts(
            depths=depths,
            views=views,
            synthetic=False,
            sites=tuple(self.sites),
            channels=self.channels,
            classes=tuple(self.classes.names),
            fingerprints=tuple(self.fingerprint(site) for site in self.sites),
            annotations=tuple(self.annotations(site) for site in self.all_sites),
        )

    def fingerprint(self, site: str, trained_as: str | None = None) -> str:
        """A short name for a site's images and how they are split; it tells nothing about them.

        `trained_as`: what it would be if the site, which takes no part, had trained under that name.
        """
        decoded, limit = self.decoded(site), self.listing.limits[site]
        if trained_as is None:
            return fingerprint_images(decoded.samples, decoded.prints, self.recipe, limit)
        samples = draw_samples(self.kind, decoded.samples, self.data.limit, self.data.seed, trained_as)
        return fingerprint_images(samples, decoded.prints, self.recipe, self.data.limit)

    def patients(self, site: str, groups: Tensor) -> Tensor:
        """Whose images they are, by their groups: split by image, these are the samples, whoever they are of."""
        if self.data.split_by == "patient":
            return groups
        first: dict[str | int, int] = {}
        samples = enumerate(self.decoded(site).samples)
        return torch.tensor([first.setdefault(sample.patient or number, number) for number, sample in samples])[groups]

    def choice(self, site: str) -> str:
        """A short name for which images a site trains on, whatever is made of them."""
        decoded = self.decoded(site)
        return fingerprint_choice(decoded.samples, decoded.prints, self.data, self.listing.limits[site])

    def annotations(self, site: str) -> str:
        """A short name for what a site's images are said to show: their masks or labels."""
        decoded = self.decoded(site)
        return fingerprint_annotations(decoded.samples, decoded.prints)

    def divided(self, site: str) -> DividedSite:
        """A site's images (tiles, slices) that count."""
        return divide_site(self.decoded(site), self.classes, self.data, self.listing.limits[site])

    def parts(self, site: str) -> Parts:
        """Train, val and test images; training images may be cut to the smallest site's number."""
        parts = self.divided(site).parts(self.data.seed)
        if self.data.site_sizes == "all" or site not in self.sites:
            return parts
        size = self._smallest_size if self.data.site_sizes == "smallest" else self.data.site_sizes
        return cut_training(parts, site, size, self.data.seed)

    @cached_property
    def _smallest_size(self) -> int:
        """The training images of the site that has fewest."""
        return min(len(self.divided(site).parts(self.data.seed)[0]) for site in self.sites)

    def whole(self, site: str) -> ImageSet:
        """All images of a site."""
        return self.divided(site).images


def open_folder(
    kind: Kind,
    layout: Layout,
    data: DataSettings,
    fixed_classes: Sequence[str] = (),
    watch: Watch = ignore,
    limited: Collection[str] | None = None,
) -> ImageFolder:
    """List a folder; its images are decoded when they are asked for."""
    cache = chosen_cache(data.cache)
    with suppress(OSError):  # which matters only once something must be written
        cache.claim()
    listing = list_folder(kind, layout, data, cache, limited)
    return ImageFolder(listing, Recipe(kind, data), cache, tuple(fixed_classes), watch)
