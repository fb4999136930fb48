"""Looking at the images of a run: which they are, and what they decide."""

from __future__ import annotations

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.data.inspection import check_for_training
from harmofl.errors import UsageError
from harmofl.events import ImagesChosen, Watch, ignore
from harmofl.settings import DataSettings, Settings
from harmofl.settings.schema import AT_THE_SITES


def announce_images(data: DataSettings, watch: Watch) -> None:
    """Say first of all which images are used, so that nobody takes synthetic hospitals for their own."""
    watch(ImagesChosen(data.images_used))


def find_data_facts(settings: Settings, watch: Watch = ignore) -> DataFacts:
    """Look at the images that settings name; every image of a folder is read."""
    task = registry.tasks.find(settings.task)
    if settings.data.folder == AT_THE_SITES:
        raise UsageError("these settings are of images that lay at their hospitals: say where they are, with --data")
    if settings.data.is_synthetic:
        task.open(settings.data)  # or an error that says that there is no phantom
        announce_images(settings.data, watch)
        return DataFacts(True, task.sites_of(settings.data), task.channels, task.classes_of(settings.data))
    images = task.open_folder(settings.data, watch)
    announce_images(settings.data, watch)
    check_for_training(images)
    return images.facts()
