"""Looking at the images of a run: which they are, and what they decide."""

from __future__ import annotations

from dataclasses import dataclass

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.data.inspection import check_for_training
from harmofl.errors import UsageError
from harmofl.events import ImagesChosen, Watch, ignore
from harmofl.settings import DataSettings, Settings
from harmofl.settings.schema import AT_THE_SITES
from harmofl.tasks.task import Source


def announce_images(data: DataSettings, watch: Watch, is_limited: bool = True) -> None:
    """Say first of all which images are used, so that nobody takes synthetic hospitals, or a few images, for all.

    `is_limited`: whether data.limit applies; it never does to synthetic hospitals.
    """
    watch(ImagesChosen(data.images_used, data.limit if is_limited and not data.is_synthetic else 0))


@dataclass(frozen=True)
class RunImages:
    """The images of a run, open, and what was found in them."""

    source: Source
    facts: DataFacts


def find_data_facts(settings: Settings, watch: Watch = ignore) -> DataFacts:
    """What is found in the images that settings name."""
    return open_images(settings, watch).facts


def open_images(settings: Settings, watch: Watch = ignore) -> RunImages:
    """Open the images that settings name; every image of a folder is read."""
    task = registry.tasks.find(settings.task)
    if settings.data.folder == AT_THE_SITES:
        raise UsageError("these settings are for images at their hospitals: say where your images are, with --data")
    if settings.data.is_synthetic:
        phantom = task.open(settings.data)
        announce_images(settings.data, watch)
        facts = DataFacts(
            True, task.sites_of(settings.data), task.phantom_channels(settings.data), task.classes_of(settings.data)
        )
        return RunImages(phantom, facts)
    images = task.open_folder(settings.data, watch)
    announce_images(settings.data, watch)
    check_for_training(images)
    return RunImages(images, images.facts())
