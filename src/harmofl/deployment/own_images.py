"""A hospital's own images, under its name in the federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.data.folder import ImageFolder
from harmofl.data.images import ImageSet, Site
from harmofl.data.inspection import check_for_training
from harmofl.data.samples import POOLED
from harmofl.data.volumes import to_patches
from harmofl.deployment.kits import SiteKit
from harmofl.errors import UsageError
from harmofl.settings import Settings
from harmofl.tasks.task import Source


def describe_images(kit: SiteKit, settings: Settings) -> dict[str, Any]:
    """Tell the server what it must know of images that it never sees."""
    if kit.data is None:
        return {"synthetic": True}
    images = OwnImages.of(kit, settings)
    return {
        "synthetic": False,
        "channels": images.facts.channels,
        "classes": list(images.facts.classes),
        "num_train": len(images.site.train),
    }


@dataclass(frozen=True)
class OwnImages:
    """A hospital's images, under its name in the federation, and the settings that read them."""

    site: Site
    settings: Settings
    facts: DataFacts
    source: Source
    own_name: str
    """What the source calls the hospital."""

    @classmethod
    def of(cls, kit: SiteKit, settings: Settings) -> OwnImages:
        """Open them; the folder may call the hospital by another name.

        That name, with what its images are recognized by, stands in the hospital's copy of the model: by them
        `harmofl evaluate` knows which images it was trained on. Of other sites it knows the names only.
        """
        task, name = registry.tasks.find(settings.task), kit.name
        if kit.data is None:
            site = task.load_site(name, settings.with_values("data", sites=[name]).data)
            sites = tuple(settings.data.sites or [name])
            channels, classes = task.phantom_channels(settings.data), task.classes_of(settings.data)
            return cls(site, settings, DataFacts(True, sites, channels, classes), task.open(settings.data), name)
        everyone = task.open_folder(settings.with_values("data", sites=None).data)
        own_name = name_in_folder(kit, everyone.sites)
        folder = everyone.only(own_name)
        check_for_training(folder)
        found = folder.facts()
        train, val, test = folder.parts(own_name)
        others = [site for site in settings.data.sites or () if site not in (name, own_name)]
        facts = replace(
            found,
            sites=(own_name, *others),
            channels=settings.data.channels or found.channels,
            classes=tuple(settings.data.classes or found.classes),
            fingerprints=(*found.fingerprints, *("" for _ in others)),
        )
        train = to_patches(train, settings.data)
        site = Site(name, train, {name: val}, {name: test}, {name: train})
        return cls(site, facts.complete(settings), facts, folder, own_name)

    def num_patients(self, images: ImageSet) -> int:
        """How many patients some of its images are of, however they are divided."""
        groups, source = images.groups, self.source
        return len(torch.unique(source.patients(self.own_name, groups) if isinstance(source, ImageFolder) else groups))

    @property
    def choice(self) -> str:
        """What tells which images it trains on, whatever is made of them; empty for synthetic ones."""
        return self.source.choice(self.own_name) if isinstance(self.source, ImageFolder) else ""

    @property
    def fingerprint(self) -> str:
        """What tells the site's images and their split from others; empty for synthetic ones."""
        return self.facts.fingerprints[0] if self.facts.fingerprints else ""

    @property
    def annotations(self) -> str:
        """What tells the site's masks or labels from others; empty for synthetic images."""
        return self.facts.annotations[0] if self.facts.annotations else ""


def name_in_folder(kit: SiteKit, there: list[str]) -> str:
    """Find the hospital's name in its folder: as `site.toml` says, its own name, or the only one there."""
    wanted = kit.settings.site_in_data or (kit.name if kit.name in there else None)
    if wanted in there:
        return str(wanted)
    if wanted is None and len(there) == 1 and there[0] != POOLED:
        return there[0]
    raise UsageError(f"site_in_data = {wanted!r}: the folder holds {', '.join(there) or 'no site'}")
