"""What the images decide of a run's settings: which sites take part, how many channels, which classes."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from harmofl import registry
from harmofl.data.inspection import check_for_training
from harmofl.errors import UsageError
from harmofl.events import ImagesChosen, Watch
from harmofl.settings import DataSettings, Settings, Tree
from harmofl.settings.schema import FOUND_IN_DATA

logger = logging.getLogger(__name__)


def announce_images(data: DataSettings, watch: Watch) -> None:
    """Say first of all which images are used, so that nobody takes synthetic hospitals for their own."""
    watch(ImagesChosen(data.images_used))


def adapt_to_folder(settings: Settings, file: Tree, overrides: Mapping[str, Any]) -> Settings:
    """Drop what a settings file says of images that lay elsewhere, unless the folder now named holds the same sites."""
    if not _is_for_another_folder(file, settings):
        return settings
    if not settings.data.folder:
        return settings.with_values("data", **{name: None for name in FOUND_IN_DATA if f"data.{name}" not in overrides})
    everyone = settings.with_values("data", sites=None, hold_out_site=None).data
    there, chosen = registry.tasks.find(settings.task).open_folder(everyone).sites, settings.data.sites or ()
    if not set(chosen) <= set(there):
        unknown = {name: None for name in ("sites", "channels", "classes") if f"data.{name}" not in overrides}
        return settings.with_values("data", **unknown)
    others = sorted(set(there) - {*chosen, settings.data.hold_out_site})
    if chosen and others:
        logger.warning("not among the configuration's data.sites, so left out: %s", ", ".join(others))
    return settings


def _is_for_another_folder(file: Tree, settings: Settings) -> bool:
    section = file.get("data")
    folder = section.get("folder") if isinstance(section, dict) else None
    return bool(folder) and os.path.abspath(str(folder)) != settings.data.folder


def fill_in_data_facts(settings: Settings, watch: Watch) -> Settings:
    """Settings with what the images decide; every image of a folder is read."""
    task = registry.tasks.find(settings.task)
    if not settings.data.folder:
        if not settings.data.is_synthetic:
            raise UsageError(
                "these settings are of images that lay at their hospitals: say where they are, with --data"
            )
        task.open(settings.data)  # or an error that says that there is no phantom
        announce_images(settings.data, watch)
        return settings
    images = task.open_folder(settings.data, watch)
    announce_images(settings.data, watch)
    check_for_training(images)
    return settings.with_values("data", **images.found())
