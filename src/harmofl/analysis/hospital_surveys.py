"""The surveys of all hospitals whose images are here: a folder's, or a phantom's."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from harmofl.analysis.hospitals import Hospitals, has_colours
from harmofl.analysis.survey import Originals, Survey, Surveyed, survey_site
from harmofl.data.cache import Entry
from harmofl.data.folder import ImageFolder
from harmofl.data.images import ImageSet, StoredImages
from harmofl.data.resampling import OWN_SPACING
from harmofl.data.volume_decoding import SPACING
from harmofl.data.volumes import VolumeSet
from harmofl.devices import threads
from harmofl.events import StepDone, Watch, ignore
from harmofl.settings import Settings
from harmofl.tasks.task import Source, Task

ALL_AT_HAND = 1
"""Where all images are in one place, nothing needs to be hidden."""


def surveys_of(settings: Settings, watch: Watch = ignore) -> dict[str, Survey]:
    """Survey every hospital of a folder or phantom."""
    hospitals = Hospitals(settings)
    surveys = {}
    with threads(settings.federation.threads):
        for number, site in enumerate(hospitals.sites):
            watch(StepDone(f"looking at the images of {site}", number, len(hospitals.sites)))
            surveyed = surveyed_site(hospitals.task, settings, site, hospitals.source, ALL_AT_HAND)
            surveys[site] = survey_site(site, surveyed)
    return surveys


def surveyed_site(task: Task, settings: Settings, site: str, source: Source, fewest: int) -> Surveyed:
    """A hospital's images as a survey sees them; `site`: what the source calls it."""
    train, val, test = source.parts(site)
    return Surveyed(
        train=train,
        others=len(val) + len(test),
        patients=len(torch.unique(train.groups)),
        classes=task.classes_of(settings.data),
        colours=settings.data.dimensions == 2 and has_colours(task, settings.data),
        fewest=fewest,
        seed=settings.data.seed,
        originals=_originals(source, site, train) if isinstance(source, ImageFolder) else Originals(),
    )


def _originals(folder: ImageFolder, site: str, train: ImageSet) -> Originals:
    """Sizes and values of a site's files with training images."""
    entry = folder.decoded(site).entry
    if entry is None:
        return Originals()
    files = _files_of(train, entry)
    facts = {name: values[files] for name, values in entry.facts.items()}
    values = torch.from_numpy(np.stack([facts[name] for name in ("minimum", "mean", "maximum")], axis=1))
    spacing = np.stack([facts.get(name, np.zeros(len(files))) for name in OWN_SPACING], axis=1)
    is_told = (spacing > 0).all(axis=1)
    if folder.data.dimensions == 3 and folder.data.spacing is None:
        # The volumes themselves are as they were, but turned to one orientation.
        turned = np.stack([facts[name] for name in SPACING], axis=1)
        return Originals(spacings=torch.from_numpy(turned[is_told]), values=values)
    is_volume = bool((facts["slices"] > 1).any())
    names = ("slices", "height", "width") if is_volume else ("height", "width")
    return Originals(
        sizes=torch.from_numpy(np.stack([facts[name] for name in names], axis=1)),
        spacings=torch.from_numpy(spacing[is_told]),
        values=values,
    )


def _files_of(train: ImageSet, entry: Entry) -> NDArray[np.int64]:
    """The places of files that some images come from."""
    if isinstance(train, VolumeSet):
        return np.unique(train.rows.numpy())
    assert isinstance(train, StoredImages)
    return np.unique(entry.sample[train.rows.numpy()])
