"""A hospital's own images, under its name in the federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harmofl import registry
from harmofl.data.images import Site
from harmofl.data.inspection import check_for_training
from harmofl.data.samples import POOLED
from harmofl.deployment.kits import SiteKit
from harmofl.errors import UsageError
from harmofl.settings import Settings


def describe_images(kit: SiteKit, settings: Settings) -> dict[str, Any]:
    """Tell the server what it must know of images that it never sees."""
    if kit.data is None:
        return {"synthetic": True}
    images = OwnImages.of(kit, settings)
    data = images.settings.data
    return {
        "synthetic": False,
        "channels": data.channels,
        "classes": data.classes,
        "num_train": len(images.site.train),
    }


@dataclass(frozen=True)
class OwnImages:
    """A hospital's images, under its name in the federation, and the settings that read them."""

    site: Site
    settings: Settings
    fingerprint: str
    annotations: str

    @classmethod
    def of(cls, kit: SiteKit, settings: Settings) -> OwnImages:
        """Open them; the folder may call the hospital by another name.

        That name and the fingerprint of its images go into the settings, and so into the hospital's copy of the model,
        so that `harmofl evaluate` knows which images it was trained on. Of other sites it knows only the names.
        """
        task, name = registry.tasks.find(settings.task), kit.name
        if kit.data is None:
            site = task.load_site(name, settings.with_values("data", sites=[name]).data)
            return cls(site, settings, "", "")
        everyone = settings.with_values("data", sites=None, fingerprints=None)
        own_name = name_in_folder(kit, task.open_folder(everyone.data).sites)
        only = settings.with_values("data", sites=[own_name], fingerprints=None)
        folder = task.open_folder(only.data)
        check_for_training(folder)
        found = folder.found()
        train, val, test = folder.parts(own_name)
        known = {part: found[part] for part in ("channels", "classes") if getattr(settings.data, part) is None}
        others = [site for site in settings.data.sites or () if site not in (name, own_name)]
        (fingerprint,), (annotations,) = found["fingerprints"], found["annotations"]
        prints = [fingerprint, *("" for _ in others)]
        known |= {"sites": [own_name, *others], "fingerprints": prints, "annotations": None}
        site = Site(name, train, {name: val}, {name: test}, {name: train})
        return cls(site, settings.with_values("data", **known), fingerprint, annotations)


def name_in_folder(kit: SiteKit, there: list[str]) -> str:
    """Find the hospital's name in its folder: as `site.toml` says, its own name, or the only one there."""
    wanted = kit.settings.site_in_data or (kit.name if kit.name in there else None)
    if wanted in there:
        return str(wanted)
    if wanted is None and len(there) == 1 and there[0] != POOLED:
        return there[0]
    raise UsageError(f"site_in_data = {wanted!r}: the folder holds {', '.join(there) or 'no site'}")
